"""Copy, row sum, elementwise chain, matrix product, naive attention: right, complete, counted."""

import pytest
import torch

from kernelbook import backend, checks, compiled, meter
from kernelbook.kernels import attention_naive as naive
from kernelbook.kernels import copy, elementwise_chain, matmul, row_sum

DTYPES = [torch.float32, torch.float16, torch.bfloat16]
dtypes = pytest.mark.parametrize("dtype", DTYPES, ids=["fp32", "fp16", "bf16"])


@pytest.fixture(params=["cpu", "cuda"])
def each_device(request):
    """New tensors on the CPU (kernels interpreted), then on the GPU (compiled)."""
    if request.param == "cuda" and not backend.GPU:
        pytest.skip("no GPU: the small kernels were not run compiled")
    with torch.device(request.param):
        yield


everywhere = pytest.mark.usefixtures("each_device")


def random(*shape, dtype=torch.float32):
    """Fresh values each run, so that no test leans on particular ones."""
    return torch.randn(shape, dtype=torch.float32).to(dtype)


def right(out, reference, dtype):
    """Close to float64, and nothing left of the poison."""
    assert checks.every_element_written(out)
    checks.check(out, reference, checks.TOLERANCE[dtype])


# --- right, on odd sizes, into poisoned memory ---------------------------------------------


@everywhere
@dtypes
@pytest.mark.parametrize("shape", [(1,), (4096,), (3, 4097), (5, 7, 11)])
def test_copy(shape, dtype):
    x = random(*shape, dtype=dtype)
    out = copy.copy(x, out=checks.poisoned_like(x))
    assert torch.equal(out, x)


@everywhere
@dtypes
@pytest.mark.parametrize("shape", [(1, 1), (3, 17), (2, 4096), (3, 5000)])
def test_row_sum(shape, dtype):
    x = random(*shape, dtype=dtype)
    out = row_sum.row_sum(x, out=checks.poisoned_like(torch.empty(shape[0])))
    # a sum of both signs may be near 0: compare with the sum of magnitudes, as rounding does
    error = (out - row_sum.reference(x.double())).abs() / x.double().abs().sum(1)
    assert error.max() < 1e-6


@everywhere
def test_row_sum_of_rows_that_lie_apart():
    x = random(6, 300)[::2, 10:200]
    assert torch.allclose(row_sum.row_sum(x), row_sum.reference(x), atol=1e-4)


@everywhere
@dtypes
@pytest.mark.parametrize("shape", [(1,), (2048,), (3, 4099)])
def test_elementwise_chain(shape, dtype):
    x, y = random(*shape, dtype=dtype), 2 + random(*shape, dtype=dtype)
    out = elementwise_chain.elementwise_chain(x, y, 1.5, out=checks.poisoned_like(x))
    right(out, elementwise_chain.reference(x.double(), y.double(), 1.5), dtype)


@everywhere
@dtypes
@pytest.mark.parametrize("m, n, k", [(1, 1, 1), (5, 300, 70), (130, 65, 33), (64, 128, 96)])
def test_matmul(m, n, k, dtype):
    a, b = random(m, k, dtype=dtype), random(n, k, dtype=dtype).T  # b is stored transposed
    out = matmul.matmul(a, b, out=checks.poisoned_like(torch.empty(m, n, dtype=dtype)))
    right(out, matmul.reference(a.double(), b.double()), dtype)


ATTENTION = [  # batch, query heads, KV heads, queries, keys, head_dim, causal
    (1, 2, 2, 64, 64, 64, False),
    (2, 4, 2, 65, 65, 80, True),
    (1, 4, 1, 1, 77, 64, True),
    (1, 3, 3, 33, 130, 40, True),
    (1, 2, 1, 70, 3, 8, False),
    (1, 2, 1, 5, 40, 256, True),
]


@everywhere
@dtypes
@pytest.mark.parametrize("shape", ATTENTION, ids=str)
def test_attention(shape, dtype):
    q, k, v, causal = attention_inputs(*shape, dtype=dtype)
    with checks.poisoned_memory():
        out = naive.attention_naive(q, k, v, causal=causal)
    assert out.dtype == dtype
    right(out, checks.reference64(naive.reference, q, k, v, causal), dtype)


def attention_inputs(batch, query_heads, kv_heads, queries, keys, head_dim, causal, dtype):
    q = random(batch, query_heads, queries, head_dim, dtype=dtype)
    k, v = (random(batch, kv_heads, keys, head_dim, dtype=dtype) for _ in range(2))
    return q, k, v, causal


@everywhere
def test_attention_takes_strides_and_a_scale():
    q, k, v = (random(2, 37, 4, 32).transpose(1, 2) for _ in range(3))
    out = naive.attention_naive(q, k, v, causal=True, scale=0.3)
    right(out, checks.reference64(naive.reference, q, k, v, True, 0.3), torch.float32)


@everywhere
def test_queries_before_the_first_key_give_zero():
    q, k, v = random(1, 1, 7, 16), random(1, 1, 3, 16), random(1, 1, 3, 16)
    out = naive.attention_naive(q, k, v, causal=True)
    assert torch.equal(out[0, 0, :4], torch.zeros(4, 16))
    right(out, checks.reference64(naive.reference, q, k, v, True), torch.float32)


@everywhere
def test_softmax_is_stable_where_exp_overflows():
    q, k, v = 10 * random(1, 1, 9, 64), 8 * random(1, 1, 50, 64), random(1, 1, 50, 64)
    assert torch.exp(q @ k.transpose(-1, -2) / 8).isinf().any()
    out = naive.attention_naive(q, k, v)
    checks.check(out, checks.reference64(naive.reference, q, k, v), 1e-4)


@everywhere
def test_rows_longer_than_a_program_holds(monkeypatch):
    monkeypatch.setattr(naive, "LONGEST_ROW", 64)
    q, k, v = random(1, 2, 3, 32), random(1, 2, 150, 32), random(1, 2, 150, 32)
    with checks.poisoned_memory():
        out = naive.attention_naive(q, k, v, causal=True)
    right(out, checks.reference64(naive.reference, q, k, v, True), torch.float32)


@everywhere
def test_no_rows_are_no_error():
    assert copy.copy(torch.empty(0)).shape == (0,)
    assert row_sum.row_sum(torch.empty(0, 5)).shape == (0,)
    assert matmul.matmul(torch.empty(0, 5), torch.empty(5, 3)).shape == (0, 3)
    k = torch.empty(1, 1, 3, 8)
    assert naive.attention_naive(torch.empty(1, 1, 0, 8), k, k).shape == (1, 1, 0, 8)


# --- errors name what they got and what they take ------------------------------------------

x = torch.zeros(4, 6)
q = torch.zeros(1, 2, 3, 8)
MISTAKES = [
    (lambda: copy.copy(x.T), "contiguous"),
    (lambda: copy.copy(x.int()), "fp16, bf16 or fp32, got torch.int32"),
    (lambda: copy.copy(x, out=torch.zeros(5)), r"out must be .*\(4, 6\)"),
    (lambda: row_sum.row_sum(x[0]), r"\[rows, columns\], got \(6,\)"),
    (lambda: row_sum.row_sum(x.T), "stride 1"),
    (lambda: row_sum.row_sum(x.double()), "fp32, got torch.float64"),
    (lambda: elementwise_chain.elementwise_chain(x, x.half(), 1.0), "y must be like x"),
    (lambda: elementwise_chain.elementwise_chain(x, x[:3], 1.0), r"y must be like x, \(4, 6\)"),
    (lambda: matmul.matmul(x, x), r"\[M, K\] and b \[K, N\], got \(4, 6\) and \(4, 6\)"),
    (lambda: matmul.matmul(x, x.T.half()), "got a torch.float32 and b torch.float16"),
    (lambda: matmul.matmul(x, x.T, out=x), r"out must be \(4, 4\)"),
    (lambda: naive.attention_naive(q[0], q, q), r"\[B, Hq, Sq, D\]"),
    (lambda: naive.attention_naive(q, q, q[..., :4]), "k and v both"),
    (lambda: naive.attention_naive(q[:, :1], q, q), "multiple of KV heads, got 1 and 2"),
    (lambda: naive.attention_naive(q[..., :4], q[..., :4], q[..., :4]), "from 8 to 256, got 4"),
    (lambda: naive.attention_naive(q.double(), q, q), "got torch.float64"),
    (lambda: naive.attention_naive(q, q[:, :, :0], q[:, :, :0]), "at least one key"),
    (lambda: naive.attention_naive(q, q, q, out=x), "out must be like q"),
    (lambda: naive.attention_naive(q, q.to("meta"), q), "k on meta"),
]


@pytest.mark.parametrize("call, message", MISTAKES, ids=[message for _, message in MISTAKES])
def test_mistakes_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


# --- the meter counts what `work` says -----------------------------------------------------


def assert_counted(counts, work, flops=True):
    """Bytes exactly at any shape; FLOPs where tiles fit, at least `work`'s elsewhere."""
    assert (counts.read, counts.written) == (work.read, work.written)
    assert counts.flops == work.flops if flops else counts.flops >= work.flops


@pytest.mark.parametrize("shape", [(1,), (63,), (4096,), (9, 1000), (2, 3, 5)])
def test_copy_counts(shape):
    counts = meter.count(copy.copy, random(*shape, dtype=torch.float16))
    elements = torch.Size(shape).numel()
    assert_counted(counts, copy.work(elements, torch.float16))
    assert counts.launches == 1 and counts.programs == -(-elements // copy.BLOCK)


@pytest.mark.parametrize("shape", [(1, 1), (3, 64), (4, 1000), (2, 4096), (2, 8200)])
def test_row_sum_counts(shape):
    counts = meter.count(row_sum.row_sum, random(*shape, dtype=torch.bfloat16))
    assert_counted(counts, row_sum.work(*shape, torch.bfloat16), flops=False)


@pytest.mark.parametrize("elements", [1, 100, 2048, 4096, 5001])
def test_elementwise_chain_counts(elements):
    counts = meter.count(
        elementwise_chain.elementwise_chain, random(elements), random(elements), 2.0
    )
    work = elementwise_chain.work(elements, torch.float32)
    assert_counted(counts, work, flops=elements % elementwise_chain.BLOCK == 0)


@pytest.mark.parametrize(
    "m, n, k", [(16, 16, 32), (64, 64, 64), (128, 64, 96), (5, 7, 9), (100, 130, 70)]
)
def test_matmul_counts(m, n, k):
    counts = meter.count(matmul.matmul, random(m, k), random(k, n))
    aligned = m % 16 == n % 16 == k % 32 == 0
    assert_counted(counts, matmul.work(m, n, k, torch.float32), flops=aligned)


@pytest.mark.parametrize(
    "shape",
    [
        (1, 1, 1, 64, 64, 64, False),
        (1, 2, 1, 128, 128, 64, True),
        (2, 4, 2, 16, 64, 32, True),
        (1, 4, 2, 1, 77, 64, False),
        (1, 2, 2, 65, 130, 80, True),
    ],
    ids=str,
)
def test_attention_counts(shape):
    q, k, v, causal = attention_inputs(*shape, dtype=torch.float16)
    counts = meter.count(naive.attention_naive, q, k, v, causal=causal)
    *sizes, _ = shape
    aligned = not any(size % 16 for size in sizes[3:])
    assert_counted(counts, naive.work(*sizes, torch.float16), flops=aligned)
    by_kernel = naive.work_by_kernel(*sizes, torch.float16)
    assert [kernel.name for kernel in counts.kernels] == list(by_kernel)
    for kernel, work in zip(counts.kernels, by_kernel.values(), strict=True):
        assert (kernel.read, kernel.written) == (work.read, work.written)


# --- every configuration compiles for every target -----------------------------------------


def launch_all(dtype, head_dims):
    """Each kernel at shapes that reach each of its configurations; nothing runs."""

    def empty(*shape):
        return torch.empty(shape, dtype=dtype)

    copy.copy(empty(4096))
    row_sum.row_sum(empty(2, 5000))
    elementwise_chain.elementwise_chain(empty(512), empty(512), 2.0)
    matmul.matmul(empty(1024, 1024), empty(1024, 1024))
    for head_dim in head_dims:
        q, k = empty(1, 4, 512, head_dim), empty(1, 2, 512, head_dim)
        naive.attention_naive(q, k, k, causal=True)
    naive.softmax_rows(empty(1, 1, 4, 40000))  # the longest tile, and the loop over a row


def compile_all(target, dtype, head_dims):
    """Reports of everything launched on a GPU of that capability."""
    with backend.assume(capability=divmod(target, 10)):
        return compiled.compile_launches(lambda: launch_all(dtype, head_dims), targets=(target,))


# fp16 takes bf16's tiles, instruction for instruction.
@pytest.mark.parametrize(
    "target, dtype, head_dims",
    [
        (80, torch.bfloat16, (64, 128, 256)),
        (90, torch.bfloat16, (64, 128, 256)),
        (89, torch.bfloat16, (128, 256)),
        (80, torch.float32, (64, 128)),
        (90, torch.float32, (64, 128)),
    ],
    ids=str,
)
def test_every_configuration_compiles(target, dtype, head_dims):
    reports = compile_all(target, dtype, head_dims)
    assert len({report.kernel for report in reports}) == 7
    for report in reports:
        assert report.refusal is None, f"{report.kernel}: {report.refusal}"


def test_out_with_overlapping_elements_is_refused():
    a, q = random(4, 4), random(1, 1, 4, 8)
    with pytest.raises(ValueError, match="a place of its"):
        matmul.matmul(a, a, out=torch.empty(1, 4).expand(4, 4))
    with pytest.raises(ValueError, match="a place of its"):
        naive.attention_naive(q, q, q, out=torch.empty(1, 1, 1, 8).expand(1, 1, 4, 8))
