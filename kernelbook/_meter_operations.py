"""Counts of PyTorch operations: what is counted is operations that write memory; views are none."""

from dataclasses import dataclass

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from kernelbook._meter_bytes import unique_bytes


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


# One FLOP an output element each, whatever the formula behind (a gelu counts as one).
POINTWISE = _words("""
    abs acos add addcdiv addcmul asin atan atan2 ceil clamp clamp_max clamp_min cos cosh div elu erf
    exp exp2 expm1 floor fmax fmin fmod gelu hardswish hypot leaky_relu lerp log log10 log1p log2
    maximum minimum mish mul neg pow reciprocal relu remainder round rsqrt rsub sigmoid sign silu
    sin sinh softplus sqrt square sub tan tanh threshold trunc xlogy
""")
# FLOPs an input element: reductions and scans 1, and the operations that PyTorch keeps whole.
REDUCTIONS = dict.fromkeys(
    _words("amax amin argmax argmin cummax cummin cumprod cumsum max mean min norm prod sum"), 1
) | {
    "linalg_vector_norm": 2,  # square, sum
    "var": 4,  # sum, subtract, square, sum
    "std": 4,
    "var_mean": 4,
    "logsumexp": 4,  # max, subtract, exp, sum
    "_softmax": 5,  # max, subtract, exp, sum, divide
    "_safe_softmax": 5,
    "_log_softmax": 5,
    "native_layer_norm": 7,  # sum, subtract, square, sum, multiply, weight, bias
    "native_group_norm": 7,
    "_fused_rms_norm": 4,  # square, sum, multiply, weight
}
ALLOCATIONS = _words("empty empty_like empty_strided new_empty new_empty_strided set_ resize_")
OVERWRITES = _words("""
    bernoulli_ cauchy_ copy_ exponential_ eye_ fill_ geometric_ log_normal_ normal_ random_
    uniform_ zero_
""")  # in place, but without reading what was there
# They take a tensor for its shape, dtype and device alone.
READS_NOTHING = _words("""
    full_like new_full new_ones new_zeros ones_like rand_like randint_like randn_like zeros_like
""")


def _put(marks, args):
    """aten's own function, for the tensor's method takes no slices among indices (None)."""
    torch.ops.aten.index_put_(marks, args[1], torch.tensor(True))


# Operations that read or write only the places that their indices name.
GATHERS = _words("embedding index index_select gather take masked_select")
SCATTERS = {
    "index_put_": _put,
    "_index_put_impl_": _put,
    "scatter_": lambda marks, args: marks.scatter_(args[1], args[2], True),
    "scatter_add_": lambda marks, args: marks.scatter_(args[1], args[2], True),
    "index_copy_": lambda marks, args: marks.index_fill_(args[1], args[2], True),
    "index_fill_": lambda marks, args: marks.index_fill_(args[1], args[2], True),
    "index_add_": lambda marks, args: marks.index_fill_(args[1], args[2], True),
    "masked_scatter_": lambda marks, args: marks.masked_fill_(args[1], True),
}
ACCUMULATES = _words("scatter_add_ index_add_")


@dataclass
class OperationCounts:
    """One PyTorch operation that writes memory: unique bytes read and written, FLOPs."""

    name: str
    read: int
    written: int
    matmul_flops: int = 0
    vector_flops: int = 0

    @property
    def flops(self) -> int:
        return self.matmul_flops or self.vector_flops


class OperationWatcher(TorchDispatchMode):
    """Appends an `OperationCounts` an operation to `operations`, unless `paused`."""

    def __init__(self, operations: list):
        super().__init__()
        self.operations, self.paused = operations, False
        self.on_read = lambda tensor: None  # told of each tensor whose value the host takes

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # shielding from torch.compile would import it, five seconds

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        _refuse_elsewhere(func, (args, kwargs))
        if _name(func) == "_local_scalar_dense":
            self.on_read(args[0])
        if torch.is_inference_mode_enabled():  # composites arrive whole: `linear` instead of `mm`
            with self:
                out = func.decompose(*args, **kwargs)
            if out is not NotImplemented:
                return out
        out = func(*args, **kwargs)
        _refuse_elsewhere(func, out)
        self.paused = True
        try:
            counts = count_operation(func, args, kwargs, out)
        finally:
            self.paused = False
        if counts is not None:
            self.operations.append(counts)
        return out


def count_operation(func, args, kwargs, out) -> OperationCounts | None:
    """What one call read, wrote and computed; None where it wrote no memory."""
    name = _name(func)
    inputs, overwritten, mutated = _roles(func, args, kwargs)
    if torch.Tag.inplace_view in func.tags or name in ALLOCATIONS:
        return None
    known = {t.untyped_storage().data_ptr() for t in [*inputs, *mutated] if t.numel()}
    fresh = [t for t in _tensors(out) if t.untyped_storage().data_ptr() not in known and t.numel()]
    if not fresh and not mutated:
        return None
    if name in SCATTERS:
        written, self_read = _scattered_bytes(func, args, kwargs)
        return OperationCounts(name, unique_bytes(inputs) + self_read, written)
    read = unique_bytes(inputs + [t for t in mutated if id(t) not in overwritten])
    if name in READS_NOTHING:
        read = 0
    if name in GATHERS and fresh:
        read = _gathered_bytes(func, args, kwargs, inputs)
    written = unique_bytes(fresh + mutated)
    matmul = matmul_flops(func, args, kwargs, out)
    vector = 0 if matmul else vector_flops(name, inputs + mutated, fresh + mutated)
    return OperationCounts(name, read, written, matmul, vector)


def _refuse_elsewhere(func, tree) -> None:
    for tensor in _tensors(tree):
        if tensor.device.type != "cpu":
            raise ValueError(
                f"the meter runs on CPU copies, and {_name(func)} met a tensor on {tensor.device}: "
                "pass tensors and modules as arguments of meter.count, not through a closure"
            )


def _name(func) -> str:
    return func._schema.name.split("::")[-1]


def _tensors(tree) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


def _roles(func, args, kwargs):
    """(tensors only read, ids of those written without reading, tensors written)."""
    inputs, overwritten, mutated = [], set(), []
    for position, argument in enumerate(func._schema.arguments):
        value = args[position] if position < len(args) else kwargs.get(argument.name)
        tensors = _tensors(value)
        if argument.alias_info is None or not argument.alias_info.is_write:
            inputs += tensors
            continue
        mutated += tensors
        if argument.kwarg_only or _name(func) in OVERWRITES:  # out=, or fill_ and the like
            overwritten |= {id(tensor) for tensor in tensors}
    return inputs, overwritten, mutated


# --- places


def _gathered_bytes(func, args, kwargs, inputs) -> int:
    """Bytes of indices, and unique bytes of the source's places that they name."""
    source, *indices = inputs
    if source.dim() == 0:
        return unique_bytes(inputs)
    if _name(func) in ("embedding", "index_select"):
        dim = 0 if _name(func) == "embedding" else args[1] % source.dim()
        rows = indices[0].unique().numel()
        return unique_bytes(indices) + unique_bytes([source]) // source.size(dim) * rows
    places = torch.arange(source.numel()).view(source.shape)
    found = func(places, *args[1:], **kwargs)
    return unique_bytes(indices) + found.unique().numel() * source.element_size()


def _scattered_bytes(func, args, kwargs) -> tuple[int, int]:
    """(bytes written, bytes of the target read) of an operation that writes where indices say."""
    name, target = _name(func), args[0]
    marks = torch.zeros(target.shape, dtype=torch.bool)
    SCATTERS[name](marks, args)
    written = int(marks.sum()) * target.element_size()
    return written, written if _accumulates(name, args, kwargs) else 0


def _accumulates(name: str, args, kwargs) -> bool:
    """Whether old values are read: by name, or by index_put_'s accumulate or scatter_'s reduce."""
    if name in ("index_put_", "_index_put_impl_"):
        return any(value is True for value in (*args[3:4], kwargs.get("accumulate")))
    return name in ACCUMULATES or kwargs.get("reduce") is not None


# --- FLOPs


def _attention_flops(q, k, v) -> int:
    """2 · B · Hq · Sq · Skv · (D + Dv); torch's formulas ignore the causal mask too."""
    batch, heads, queries, head_dim = q.shape
    return 2 * batch * heads * queries * k.shape[-2] * (head_dim + v.shape[-1])


def matmul_flops(func, args, kwargs, out) -> int:
    """FLOPs of matrix products by torch's own formulas, and of the few that those leave out."""
    packet, name = func.overloadpacket, _name(func)
    if name == "_scaled_dot_product_flash_attention_for_cpu":
        return _attention_flops(*args[:3])
    if name in ("mv", "dot", "vdot"):
        return 2 * args[0].numel()
    if name == "addmv":
        return 2 * args[1].numel()
    if packet in flop_registry:
        return int(flop_registry[packet](*args, **kwargs, out_val=out))
    return 0


def vector_flops(name: str, inputs, outputs) -> int:
    """Element arithmetic in floating point, by the tables at the top of this file."""
    base = name.removesuffix("_")
    if base in POINTWISE:
        return sum(t.numel() for t in outputs[:1] if t.is_floating_point())
    factor = REDUCTIONS.get(base, REDUCTIONS.get(name, 0))
    return factor * sum(t.numel() for t in inputs[:1] if t.is_floating_point())
