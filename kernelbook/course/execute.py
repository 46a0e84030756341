"""Running a submission's cells: what nbgrader's own execution lacks."""

from nbclient.exceptions import CellTimeoutError, DeadKernelError
from nbformat.v4 import new_output
from nbgrader.preprocessors import Execute
from nbgrader.utils import is_grade

# The first cell only imports, and importing torch from a cold disk is no student's fault.
SETUP_SECONDS = 90
OUTPUT_BYTES_A_CELL = 1_000_000


class ExecuteUntilStuck(Execute):
    """Executes a notebook up to the cell that never ends or that kills the kernel.

    Cells after that one are marked as skipped, with the reason, and earn nothing; cells before it
    keep what they earned. A test cell that shows no number earns nothing either: nbgrader alone
    would give it full marks.
    """

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        # Interrupting is no use: code that catches KeyboardInterrupt would go on for ever.
        self.interrupt_on_timeout = False
        self.shutdown_kernel = "immediate"
        self.startup_timeout = SETUP_SECONDS
        self.skip_cells_with_tag = "no cell of a submission is skipped"
        self.timeout_func = self._seconds_for
        self.stuck = None

    def _seconds_for(self, cell) -> int:
        grade_id = cell.metadata.get("nbgrader", {}).get("grade_id", "")
        return SETUP_SECONDS if grade_id.endswith("setup") else self.timeout

    def preprocess_cell(self, cell, resources, index):
        if cell.cell_type != "code" or not cell.source.strip():
            return cell, resources
        if self.stuck:
            cell.outputs = [_error("Skipped", f"not run: {self.stuck}")]
            return cell, resources
        self._output_bytes = 0
        try:
            cell, resources = super().preprocess_cell(cell, resources, index)
        except CellTimeoutError:
            self._stop(cell, f"{_name(cell)} ran longer than {self._seconds_for(cell)} s")
        except DeadKernelError:
            self._stop(cell, f"{_name(cell)} ended the Python process")
        if is_grade(cell):
            _without_tracebacks(cell)
            if not _has_result(cell):
                cell.outputs.append(_error("NoScore", "the test ended without a score"))
        return cell, resources

    def _stop(self, cell, reason: str) -> None:
        self.stuck = reason
        cell.outputs.append(_error("Stopped", reason + "; the rest of this notebook is skipped"))

    def process_message(self, msg, cell, cell_index):
        """Drop what a cell prints beyond a megabyte: a loop that prints fills the memory."""
        if msg["msg_type"] == "stream":
            self._output_bytes += len(msg["content"]["text"])
            if self._output_bytes > OUTPUT_BYTES_A_CELL:
                return None
        return super().process_message(msg, cell, cell_index)


def _name(cell) -> str:
    grade_id = cell.metadata.get("nbgrader", {}).get("grade_id")
    return f"the cell {grade_id!r}" if grade_id else f"the cell {cell.source[:40]!r}"


def _without_tracebacks(cell) -> None:
    """A traceback in a test cell quotes the hidden tests around the failing line."""
    for output in cell.outputs:
        if output.output_type == "error":
            output.traceback = [f"{output.ename}: {output.evalue}"]


def _has_result(cell) -> bool:
    return any(output.output_type in ("execute_result", "error") for output in cell.outputs)


def _error(name: str, text: str):
    return new_output("error", ename=name, evalue=text, traceback=[f"{name}: {text}"])
