"""Comparing what an answer gave with what is right, and saying what may be wrong."""

import weakref

import torch
from torch.utils._pytree import tree_leaves

from kernelbook.checks import relative_error

# Nothing else is compared: an object may claim to equal everything.
PLAIN = (int, float, bool, str, type(None), torch.dtype)
NAN_HINT = (
    "NaN comes from -inf - (-inf), from 0 / 0, from a masked tl.load without other=, or from an "
    "element that no kernel wrote (fresh memory is NaN in these tests)"
)
FIRST_THE_RESULT = "this counts where the result is right: mend that first"
# Tensors that `close` or `same` found right, by id.
_right: weakref.WeakValueDictionary = weakref.WeakValueDictionary()


def equal(got, want, mistakes: dict | None = None, what: str = "the result") -> None:
    """Compare numbers or strings; `mistakes` maps a typical wrong value to its explanation."""
    if got is None and want is not None:
        raise AssertionError(f"{what}: the function returned None; is a `return` missing?")
    if not _plain(got):
        kind = f"{type(got).__module__}.{type(got).__name__}".removeprefix("builtins.")
        raise AssertionError(f"{what}: expected {want!r}, got an object of type {kind}")
    if got == want:
        return
    known = (mistakes or {}).items()
    likely = next((explanation for value, explanation in known if value == got), None)
    hint = f". Likely mistake: {likely}" if likely else ""
    raise AssertionError(f"{what}: expected {want!r}, got {got!r}{hint}")


def _plain(value) -> bool:
    if type(value) in (tuple, list):
        return all(map(_plain, value))
    return type(value) in PLAIN


def near(got, want, mistakes: dict | None = None, what: str = "the result") -> None:
    """`equal` for numbers with rounding errors: relative difference below 1e-6."""
    if got is not None and type(got) not in (int, float):
        return equal(got, want, what=what)
    for value, explanation in {want: "", **(mistakes or {})}.items():
        if got is not None and abs(got - value) <= 1e-6 * abs(value):
            return equal(value, want, {value: explanation}, what)
    equal(got, want, what=what)


def close(got, want, tolerance: float, hint: str = "", mistakes: dict | None = None) -> None:
    """Compare a tensor with the reference by relative error; name the worst element.

    `mistakes` maps an explanation to the tensor that the mistake gives.
    """
    _same_shape(got, want)
    given, got, want = got, got.double(), want.double()
    if relative_error(got, want) <= tolerance:
        _right[id(given)] = given
        return
    wrong = ~torch.isclose(got, want, rtol=tolerance, atol=tolerance * want.abs().max().item())
    first = [int(index) for index in wrong.nonzero()[0]] if wrong.any() else [0] * got.ndim
    at = tuple(first)
    text = (
        f"shape {list(want.shape)}: {int(wrong.sum())} of {wrong.numel()} elements are wrong; "
        f"the first is {first}: expected {want[at].item():.4g}, got {got[at].item():.4g}"
    )
    hints = [hint]
    for explanation, tensor in (mistakes or {}).items():
        if relative_error(got, tensor.double()) <= tolerance:
            hints = [f"Likely mistake: {explanation}"]
    hints += [NAN_HINT] if got.isnan().any() else []
    raise AssertionError(_sentences(text, *hints))


def same(got, want, hint: str = "", what: str = "ids") -> None:
    """Compare a tensor of whole numbers with the reference, dtype included."""
    _same_shape(got, want)
    equal(got.dtype, want.dtype, what=f"dtype of {what}")
    if got.tolist() != want.tolist():
        text = f"{what}: expected {want.tolist()}, got {got.tolist()}"
        raise AssertionError(_sentences(text, hint))
    _right[id(got)] = got


def _sentences(*texts: str) -> str:
    *ended, last = [text for text in texts if text]
    return " ".join([text if text.endswith(("?", ".")) else f"{text}." for text in ended] + [last])


def _same_shape(got, want) -> None:
    if type(got) is not torch.Tensor:
        hint = "; is a `return` missing?" if got is None else ""
        raise AssertionError(f"expected a tensor, got {type(got).__name__}{hint}")
    if got.shape != want.shape:
        raise AssertionError(f"expected shape {list(want.shape)}, got {list(got.shape)}")


def first_right(counts) -> None:
    """AssertionError unless `close` or `same` found every tensor of `counts.result` right."""
    leaves = tree_leaves(counts.result)
    if not leaves or any(_right.get(id(leaf)) is not leaf for leaf in leaves):
        raise AssertionError(FIRST_THE_RESULT)
