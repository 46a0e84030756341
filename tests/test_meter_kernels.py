"""Triton kernels against counts made by hand: exact, to the byte."""

import torch
import triton
import triton.language as tl
from metered import add, add_kernel, matmul, naive_attention, one_kernel, softmax, tiled_attention
from triton.tools.tensor_descriptor import TensorDescriptor

from kernelbook import meter


@triton.jit
def histogram_kernel(values, counts, n, BLOCK: tl.constexpr):
    i = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.atomic_add(counts + tl.load(values + i, mask=i < n, other=0), 1, mask=i < n)


def histogram(values):
    counts = torch.zeros(64, dtype=torch.int32)
    histogram_kernel[(2,)](values, counts, values.numel(), BLOCK=64)
    return counts


@triton.jit
def descriptor_kernel(source, target, rows, columns, M: tl.constexpr, N: tl.constexpr):
    target = tl.make_tensor_descriptor(target, [rows, columns], [columns, 1], [M, N])
    m, n = tl.program_id(0) * M, tl.program_id(1) * N
    target.store([m, n], source.load([m, n]) * 2.0)


def double_by_descriptor(x):
    out = torch.empty_like(x)
    source = TensorDescriptor.from_tensor(x, [16, 32])
    grid = (triton.cdiv(x.shape[0], 16), triton.cdiv(x.shape[1], 32))
    descriptor_kernel[grid](source, out, *x.shape, M=16, N=32)
    return out


@triton.jit
def block_pointer_kernel(x, out, rows, columns, M: tl.constexpr, N: tl.constexpr):
    at = (tl.program_id(0) * M, 0)
    source = tl.make_block_ptr(x, (rows, columns), (columns, 1), at, (M, N), (1, 0))
    total = tl.zeros([M], tl.float32)
    for _ in range(0, columns, N):
        total += tl.sum(tl.load(source, boundary_check=(0, 1), padding_option="zero"), 1)
        source = tl.advance(source, (0, N))
    target = tl.make_block_ptr(out, (rows,), (1,), (tl.program_id(0) * M,), (M,), (0,))
    tl.store(target, total, boundary_check=(0,))


def row_sums(x):
    out = torch.empty(x.shape[0])
    block_pointer_kernel[(triton.cdiv(x.shape[0], 16),)](x, out, *x.shape, M=16, N=16)
    return out


def test_vector_add_with_a_mask():
    counts = meter.count(add, torch.ones(1000), torch.ones(1000))
    assert (counts.result == 2).all()
    assert one_kernel(counts) == {
        "name": "add_kernel",
        "programs": 4,
        "requested_read": 8000,
        "requested_written": 4000,
        "read": 8000,
        "written": 4000,
        "sectors_read": 8000,
        "sectors_written": 4000,
        "matmul_flops": 0,
        "vector_flops": 1024,  # as issued: the masked lanes too
    }
    assert counts.operations == [] and counts.waits == []
    assert (counts.bytes, counts.flops, counts.programs, counts.launches) == (12000, 1024, 4, 1)


def test_row_softmax():
    counts = meter.count(softmax, torch.randn(10, 100).bfloat16())
    kernel = one_kernel(counts)
    assert kernel["requested_read"] == kernel["read"] == 10 * 100 * 2
    assert kernel["requested_written"] == kernel["written"] == 2000
    assert kernel["sectors_read"] == 63 * 32
    assert kernel["vector_flops"] == 10 * 5 * 128  # max, subtract, exp, sum, divide


def test_matmul_with_partial_tiles():
    m, n, k = 50, 70, 40
    a, b = torch.randn(m, k).half(), torch.randn(k, n).half()
    counts = meter.count(matmul, a, b)
    torch.testing.assert_close(counts.result, a @ b, rtol=1e-2, atol=1e-2)
    kernel = one_kernel(counts)
    assert kernel["programs"] == 2 * 3
    assert kernel["requested_read"] == 2 * (m * k * 3 + k * n * 2)  # a by each column of tiles
    assert kernel["read"] == 2 * (m * k + k * n) and kernel["written"] == 2 * m * n
    assert kernel["matmul_flops"] == 6 * 3 * 2 * 32 * 32 * 16  # as issued, not 2 m n k
    assert counts.flops == kernel["matmul_flops"] and kernel["vector_flops"] == 0


def test_atomics_read_and_write():
    values = torch.tensor([0, 0, 1, 20] * 25)
    counts = meter.count(histogram, values)
    assert counts.result[[0, 1, 20]].tolist() == [50, 25, 25]
    kernel = one_kernel(counts)
    assert kernel["requested_read"] == 100 * 8 + 100 * 4
    assert kernel["requested_written"] == 100 * 4
    assert kernel["read"] == 100 * 8 + 3 * 4 and kernel["written"] == 3 * 4
    assert kernel["sectors_written"] == 2 * 32
    assert [operation.name for operation in counts.operations] == ["zeros"]


def test_descriptors_request_what_is_inside():
    x = torch.randn(40, 48).bfloat16()
    counts = meter.count(double_by_descriptor, x)
    assert torch.equal(counts.result, x * 2)
    kernel = one_kernel(counts)
    assert kernel["programs"] == 3 * 2
    assert kernel["requested_read"] == kernel["read"] == kernel["written"] == 40 * 48 * 2
    assert kernel["vector_flops"] == 6 * 16 * 32


def test_block_pointers():
    x = torch.randn(20, 40)
    counts = meter.count(row_sums, x)
    torch.testing.assert_close(counts.result, x.sum(1))
    kernel = one_kernel(counts)
    assert kernel["requested_read"] == kernel["read"] == 20 * 40 * 4
    assert kernel["written"] == 20 * 4
    assert kernel["vector_flops"] == 2 * 3 * (16 * 16 + 16)  # sum of a tile, added to the total


@triton.jit
def shift_kernel(x, y, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(y + i, tl.load(x + i))


def test_arguments_of_one_storage_are_counted_once():
    storage = torch.arange(24.0)

    def overlapping(storage):
        add_kernel[(1,)](storage[:16], storage[8:], storage[8:], 16, BLOCK=16)

    kernel = one_kernel(meter.count(overlapping, storage))
    assert kernel["requested_read"] == 2 * 64
    assert kernel["read"] == 24 * 4 and kernel["written"] == 16 * 4

    def odd(codes):
        shift_kernel[(1,)](codes[3:19], codes[20:36], BLOCK=16)

    kernel = one_kernel(meter.count(odd, torch.zeros(64, dtype=torch.uint8)))
    assert (kernel["read"], kernel["written"]) == (16, 16)
    assert (kernel["sectors_read"], kernel["sectors_written"]) == (32, 64)


def test_a_broadcast_row_is_requested_often_and_read_once():
    """Known to be wasteful: each of 16 programs reads all of x again."""

    @triton.jit
    def kernel(x, out, BLOCK: tl.constexpr):
        i = tl.arange(0, BLOCK)
        tl.store(out + tl.program_id(0), tl.sum(tl.load(x + i)))

    def wasteful(x, out):
        kernel[(16,)](x, out, BLOCK=64)

    found = one_kernel(meter.count(wasteful, torch.ones(64), torch.ones(16)))
    assert found["requested_read"] == 16 * 256 and found["read"] == 256


def test_tiled_attention_moves_each_byte_once():
    heads, n, d = 2, 512, 64
    q, k, v = torch.randn(3, heads, n, d).bfloat16()
    counts = meter.count(tiled_attention, q, k, v)
    tensor = heads * n * d * 2
    assert (counts.read, counts.written) == (3 * tensor, tensor)
    assert counts.requested_read == tensor + 2 * tensor * (n // 64)
    assert counts.flops == 4 * heads * n * n * d
    assert counts.programs == 8 * heads
    naive = meter.count(naive_attention, q, k, v)
    assert naive.flops == counts.flops and naive.bytes > 10 * counts.bytes
    error = (counts.result - naive.result).norm() / naive.result.norm()
    assert error < 1e-2
