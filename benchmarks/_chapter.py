"""The functions that a chapter builds, as a module: what is measured is what the reader reads."""

import importlib.util
import tempfile
from pathlib import Path
from types import ModuleType

from kernelbook.course import chapters, form

HEADER = "import torch\nimport triton\nimport triton.language as tl\n\n"


def built_in(chapter: str) -> ModuleType:
    """The kernels and launchers of the Build section of the chapter that begins with `chapter`.

    Triton reads a kernel's source from its file, so the cells are written to one.
    """
    (path,) = chapters.find([chapter])
    cells = form.sections(chapters.read(path))
    sources = [
        cell["source"]
        for heading, cell in cells
        if heading == "Build" and ("@triton.jit" in cell["source"] or cell["source"][:4] == "def ")
    ]
    file = Path(tempfile.mkdtemp()) / f"chapter_{chapter}.py"
    file.write_text(HEADER + "\n\n\n".join(sources) + "\n")
    spec = importlib.util.spec_from_file_location(file.stem, file)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
