"""PyTorch's operations against counts made by hand: exact, to the byte."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from metered import naive_attention, operations

from kernelbook import meter
from kernelbook._meter_bytes import unique_bytes


def test_naive_attention_by_formula():
    heads, n, d, size = 3, 48, 16, 2
    q, k, v = torch.randn(3, heads, n, d).bfloat16()
    counts = meter.count(naive_attention, q, k, v)
    tensor, scores = heads * n * d * size, heads * n * n * size
    assert counts.read == 2 * tensor + scores + scores + scores + tensor
    assert counts.written == 3 * scores + tensor
    assert counts.matmul_flops == counts.flops == 4 * heads * n * n * d
    assert counts.vector_flops == 6 * heads * n * n
    assert len(counts.operations) == 4 and counts.launches == 0


def test_views_are_no_operations():
    x = torch.randn(4, 8)
    assert operations(lambda x: x.view(8, 4).T[1:].unsqueeze(0).expand(3, -1, -1), x) == []
    assert operations(lambda x: torch.empty(5), x) == []
    assert operations(lambda x: x.reshape(-1)[1:], x) == []
    assert operations(lambda x: x.T.reshape(-1), x) == [("clone", 128, 128, 0)]


def test_in_place_out_and_shared_inputs():
    x = torch.randn(4, 8)
    assert operations(lambda x: x.add_(1), x) == [("add_", 128, 128, 32)]
    assert operations(lambda x: x.zero_(), x) == [("zero_", 0, 128, 0)]
    assert operations(lambda x: x[:, 2].copy_(x[:, 1]), x) == [("copy_", 16, 16, 0)]
    out = torch.empty(4, 8)
    assert operations(lambda x, o: torch.mul(x, 2, out=o), x, out) == [("mul", 128, 128, 32)]
    assert operations(lambda x: x + x, x) == [("add", 128, 128, 32)]
    assert operations(lambda x: x[0].expand(5, 8) + 1, x) == [("add", 32, 160, 40)]
    assert operations(lambda x: x[:3] * x[1:], x) == [("mul", 128, 96, 24)]
    assert operations(lambda x: x.half(), x) == [("_to_copy", 128, 64, 0)]


def test_gathers_and_scatters_touch_what_indices_name():
    table, rows = torch.randn(100, 8), torch.tensor([3, 7, 3])
    embedded = operations(lambda t, i: torch.nn.functional.embedding(i, t), table, rows)
    assert embedded == [("embedding", 24 + 2 * 32, 96, 0)]
    assert operations(lambda t, i: t[i], table, rows) == [("index", 24 + 2 * 32, 96, 0)]
    assert operations(lambda t, i: t.index_select(0, i), table, rows) == [
        ("index_select", 24 + 64, 96, 0)
    ]

    def write(t, i):
        t[i] = torch.ones(8)

    assert operations(write, table, rows) == [("ones", 0, 32, 0), ("index_put_", 24 + 32, 64, 0)]


def test_scatters_from_tensors_and_of_any_value():
    x, at = torch.randn(4, 8), torch.tensor([[1, 2]])
    for value in (1.0, 2.0, 1, True):
        assert operations(lambda x, i, v=value: x.scatter_(0, i, v), x, at) == [
            ("scatter_", 16, 8, 0)
        ]
        assert operations(lambda x, i, v=value: x.index_fill_(0, i, v), x, at[0, :1]) == [
            ("index_fill_", 8, 32, 0)
        ]
    added = operations(lambda x, i: x.scatter_(0, i, 1.0, reduce="add"), x, at)
    assert added == [("scatter_", 16 + 8, 8, 0)]
    assert operations(lambda x, i, s: x.scatter_(0, i, s), x, at, torch.ones(1, 2)) == [
        ("scatter_", 16 + 8, 8, 0)
    ]
    cache, new = torch.randn(1, 2, 8, 4), torch.randn(1, 2, 1, 4)
    assert operations(lambda a, i, s: a.index_copy_(2, i, s), cache, at[0, :1], new) == [
        ("index_copy_", 8 + 32, 32, 0)
    ]

    def put(x, i, accumulate):
        return x.index_put_((i,), torch.ones(8), accumulate)

    assert operations(put, x, at[0, :1], False)[1] == ("index_put_", 8 + 32, 32, 0)
    assert operations(put, x, at[0, :1], True)[1] == ("index_put_", 8 + 32 + 32, 32, 0)
    hot = operations(lambda i: torch.nn.functional.one_hot(i, 5), at[0])
    assert hot[-1] == ("scatter_", 16, 16, 0)


def test_a_scatter_between_slices():
    """A cache's write: rows of two indices with a whole dimension between them."""

    def write(x, block, slot):
        x[block, :, slot] = torch.ones(2, 3, 5)
        return x

    x, block, slot = torch.zeros(2, 3, 4, 5), torch.tensor([0, 1]), torch.tensor([3, 2])
    assert operations(write, x, block, slot)[1] == ("index_put_", 120 + 2 * 16, 120, 0)


def test_selecting_from_a_single_value():
    one, at = torch.tensor(3.0), torch.tensor([0])
    assert operations(lambda x, i: x.index_select(0, i), one, at) == [("index_select", 12, 4, 0)]


def test_matrix_products():
    x, w, b = torch.randn(4, 8), torch.randn(6, 8), torch.randn(6)
    assert operations(lambda x, w: torch.nn.functional.linear(x, w), x, w) == [
        ("mm", 128 + 192, 96, 2 * 4 * 8 * 6)
    ]
    assert operations(torch.nn.functional.linear, x, w, b)[0][3] == 384
    q = torch.randn(1, 4, 16, 8)
    sdpa = operations(torch.nn.functional.scaled_dot_product_attention, q, q, q)
    assert [operation[3] for operation in sdpa] == [4 * 4 * 16 * 16 * 8]
    assert operations(torch.mv, w, x[0])[0][3] == 2 * 6 * 8


def test_norms_and_reductions():
    x = torch.randn(4, 8)
    norm = operations(lambda x: torch.nn.functional.layer_norm(x, (8,)), x)
    assert norm == [("native_layer_norm", 128, 128 + 2 * 16, 7 * 32)]
    assert operations(lambda x: x.sum(-1), x) == [("sum", 128, 16, 32)]
    assert operations(lambda x: x > 0, x) == [("gt", 128, 32, 0)]
    assert operations(lambda x: x.int() + 1, x)[1] == ("add", 128, 128, 0)


layouts = st.tuples(st.integers(0, 5), st.integers(1, 4), st.integers(1, 4))


@given(st.lists(layouts, min_size=1, max_size=3), st.integers(1, 3), st.integers(0, 3))
def test_unique_bytes_of_any_views(views, inner, outer):
    storage = torch.zeros(100, dtype=torch.int16)
    tensors = [storage.as_strided((n, m), (outer, inner), start) for start, n, m in views]
    for tensor in tensors:
        tensor.fill_(1)
    assert unique_bytes(tensors) == int(storage.sum()) * 2


def test_compiled_functions_are_counted_as_they_are_written():
    def gelu_twice(x):
        return torch.nn.functional.gelu(torch.nn.functional.gelu(x))

    compiled = torch.compile(gelu_twice)  # counting must not compile: 15 seconds
    assert operations(compiled, torch.ones(8)) == [("gelu", 32, 32, 8), ("gelu", 32, 32, 8)]


def test_inference_mode_counts_what_no_grad_counts():
    x, w = torch.randn(4, 8), torch.randn(8, 8)

    def step(mode):
        with mode:
            return torch.softmax(torch.nn.functional.linear(x, w) @ w, -1).reshape(-1)

    inside, outside = (meter.count(step, mode()) for mode in (torch.inference_mode, torch.no_grad))
    assert inside.flops == 2 * 2 * 4 * 8 * 8
    assert inside.operations == outside.operations


@pytest.mark.parametrize(
    "make",
    [
        torch.zeros_like,
        torch.ones_like,
        torch.rand_like,
        torch.randn_like,
        lambda x: torch.full_like(x, 3),
        lambda x: torch.randint_like(x, 5),
        lambda x: x.new_zeros(x.shape),
        lambda x: x.new_ones(x.shape),
        lambda x: x.new_full(x.shape, 2.0),
    ],
)
def test_a_tensor_taken_for_its_shape_is_not_read(make):
    counts = meter.count(make, torch.ones(4, 8))
    assert (counts.read, counts.written) == (0, 128)
