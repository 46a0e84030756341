"""kernelbook comes first: it decides, before Triton is imported, how kernels run."""

import kernelbook  # noqa: F401, I001
from hypothesis import settings

settings.register_profile("ci", deadline=None, max_examples=20)
settings.load_profile("ci")
