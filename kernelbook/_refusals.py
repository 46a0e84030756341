"""The compiler's complaints in plain words: what is wrong, in which line, what to do."""

import re

KIB = 1024

UNDEFINED = r"`\1` is not defined here on every path, or is a Python object kernels cannot use"

# (what the compiler says, what it means); \1 is what the first group matched
PLAIN = [
    (
        r"Input shapes should have M >= (\d+), N >= (\d+) and K >= (\d+)",
        r"tl.dot on a GPU needs K >= \3 (and M >= \1, N >= \2): pad the tile and mask the rest",
    ),
    (
        r"Loop-carried variable (\w+) has initial type (.+?) but is re-assigned to (.+?) in loop",
        r"`\1` changes its type in the loop, from \2 to \3: a loop variable keeps its dtype and "
        r"shape; create it with the final one, e.g. tl.zeros(..., tl.float32)",
    ),
    (
        r"unsupported AST node type: Break",
        "`break` does not exist in kernels: use a mask or `while`",
    ),
    (r"unsupported AST node type: Continue", "`continue` does not exist in kernels: use `if`"),
    (r"unsupported AST node type: Raise", "`raise` does not exist in kernels"),
    (r"unsupported AST node type: Dict", "dicts do not exist in kernels"),
    (r"unsupported AST node type: (\w+)", r"Python's `\1` does not exist in kernels"),
    (
        r"'(append|extend|insert|pop)' is not in list",
        r"lists cannot change in kernels (`\1`): keep a tensor, or write the values out",
    ),
    (
        r"'(?:tuple|list)' object has no attribute '?(append|extend|insert|pop)",
        r"lists cannot change in kernels (`\1`): keep a tensor, or write the values out",
    ),
    (
        r"Cannot access global variable (\w+)",
        r"`\1` is a Python global, which kernels cannot read: pass it as an argument, or define it "
        r"as \1 = tl.constexpr(...)",
    ),
    (
        r"numel \((\d+)\) exceeds triton maximum tensor numel \((\d+)\)",
        r"a tile of \1 elements is too large, the maximum is \2: use smaller blocks",
    ),
    (r"arange's range must be a power of 2", "tl.arange needs a power of two: round up and mask"),
    (r"NameError\(.(\w+) is not defined", UNDEFINED),
    (r"^'?(\w+) is not defined'?$", UNDEFINED),
    (
        r"incompatible dimensions at index (\d+): (\d+) and (\d+)",
        r"shapes do not fit together: dimension \1 is \2 in one tile and \3 in the other",
    ),
    (
        r"Boolean value of Tensor with more than one value is ambiguous",
        "`if` takes one value, not a tile: use tl.where",
    ),
    (r"unsupported tensor index", "a tile cannot be indexed or sliced: load the part you need"),
    (
        r"type (fp8\w+) not supported in this architecture",
        r"this GPU has no \1: fp8 needs sm_89 or newer",
    ),
    (
        r"Cannot have `return` statements inside `while` or `for`",
        "`return` inside a loop does not exist in kernels: use a mask",
    ),
]


def plainly(reason: str) -> str:
    """The compiler's reason in a student's words where we have them, else its first lines."""
    for pattern, words in PLAIN:
        match = re.search(pattern, reason)
        if match:
            return match.expand(words)
    unwrapped = re.sub(
        r"^\w+(Error|Failure|Exception)\([\"'](.*)[\"']\)$", r"\2", reason, flags=re.S
    )
    return " ".join(unwrapped.split())[:300]


def too_large(answer: dict, target: int) -> str:
    if answer["kind"] == "shared":
        return (
            f"needs {answer['bytes'] / KIB:.0f} KiB of shared memory for a program, sm_{target} "
            f"has {answer['limit'] / KIB:.0f} KiB: use smaller tiles or fewer stages"
        )
    return (
        f"a {answer['shape'].replace('x', ' × ')} tile of {answer['dtype']} takes "
        f"{answer['bytes'] / KIB:.0f} KiB, the registers of its {answer['num_warps']} warps hold "
        f"{answer['registers'] / KIB:.0f} KiB: it would spill to memory; use smaller tiles"
    )


def machine_reason(printed: str) -> str:
    """The first error that MLIR, LLVM or ptxas printed, without the file's name."""
    for line in printed.splitlines():
        found = re.search(r"(?:error|fatal)\s*:\s*(.+)", line)
        if found:
            return found.group(1).strip()[:300]
    return ""


def explain(answer: dict, kernel: str, target: int) -> str:
    """One or two sentences for a refused kernel: where, the line, and the reason."""
    if answer["error"] == "TooLarge":
        return f"{kernel}: {too_large(answer, target)}"
    reason = plainly(answer["reason"])
    if "StopIteration" in reason and (answer["text"] or "").startswith("def "):
        reason = "a kernel cannot define functions: write a @triton.jit function outside of it"
    if answer["line"] is None:
        inside = machine_reason(answer["printed"])
        return f"{kernel}: the compiler stopped: {inside or reason}"
    function = answer["function"]
    inside = kernel if function == kernel else f"{kernel}, in {function}"
    return f"{inside}, line {answer['line']}, `{answer['text']}`: {reason}"
