"""Settings of nbgrader, for `make labs`, `make grade` and nbgrader's own commands alike."""

c = get_config()  # noqa: F821

c.CourseDirectory.source_directory = "solutions"
c.CourseDirectory.release_directory = "labs"
# The gradebook is rebuilt by every run of `make grade`: nothing in it is precious.
c.CourseDirectory.db_url = "sqlite:///build/gradebook.db"

# The whole solution region is replaced. It may hold a kernel with its decorator, and a stub
# inside a `@triton.jit` body would not compile on a GPU.
c.ClearSolutions.code_stub = {"python": "# YOUR CODE HERE\nraise NotImplementedError()"}

# Execution that stops at the first time-out and keeps what was earned before it.
c.Autograde.autograde_preprocessors = [
    "kernelbook.course.execute.ExecuteUntilStuck",
    "nbgrader.preprocessors.IgnorePattern",
    "nbconvert.preprocessors.ClearMetadataPreprocessor",
    "nbgrader.preprocessors.LimitOutput",
    "nbgrader.preprocessors.SaveAutoGrades",
    "nbgrader.preprocessors.CheckCellMetadata",
]
c.ExecuteUntilStuck.timeout = 10
# No history file, and no warning of the kernel's own between the lines of the progress bar.
c.ExecuteUntilStuck.extra_arguments = ["--HistoryManager.hist_file=:memory:", "--log-level=ERROR"]

# nbgrader gives 0 to a test cell with anything on stderr: a right solution that warns keeps its
# marks. The pattern is a must, `enabled` alone ignores nothing.
c.IgnorePattern.enabled = True
c.IgnorePattern.pattern = r"[\s\S]"
c.ClearMetadataPreprocessor.enabled = False

c.LimitOutput.max_lines = 200

# Feedback shows a hidden test's outcome, not its text.
c.GenerateFeedback.preprocessors = [
    "nbgrader.preprocessors.GetGrades",
    "nbgrader.preprocessors.ClearHiddenTests",
    "nbconvert.preprocessors.CSSHTMLHeaderPreprocessor",
]
