"""Each active address is checked: pointers, helpers, views, descriptors, block pointers."""

import warnings

import pytest
import torch
import triton
import triton.language as tl
from interpreted import add
from triton.tools.tensor_descriptor import TensorDescriptor

from kernelbook import interpreter


@triton.jit
def load_past_end(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i) + tl.load(y + i, mask=i < n), mask=i < n)


@triton.jit
def store_past_end(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i, mask=i < n))


@triton.jit
def below_start(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + i - 3, mask=i < n), mask=i < n)


@triton.jit
def atomic_past_end(x, y, out, n, BLOCK: tl.constexpr):
    tl.atomic_add(out + tl.arange(0, BLOCK), 1.0)


@triton.jit
def transposed_pointers(x, y, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    pointers = (x + tl.reshape(i, [BLOCK // 2, 2])).T
    tl.store(out + i, tl.reshape(tl.load(pointers), [BLOCK]), mask=i < n)


OUTSIDE = [
    (load_past_end, "load_past_end: load of x at element 100 and 27 more, but x has 100 elements"),
    (store_past_end, "store_past_end: store of out at element 100 and 27 more, but out has 100"),
    (below_start, "below_start: load of x at element -3 and 2 more, but x has 100 elements"),
    (atomic_past_end, "atomic_past_end: atomic of out at element 100 and 27 more, but out has 100"),
    (transposed_pointers, "transposed_pointers: load of x at element 100 and 27 more"),
]


@pytest.mark.parametrize(("kernel", "message"), OUTSIDE, ids=lambda p: getattr(p, "__name__", ""))
def test_outside_is_an_error_ten_times_of_ten(kernel, message):
    for _ in range(10):
        # One storage: what lies past the end of each belongs to the others.
        x, y, out = torch.ones(3, 100)
        with pytest.raises(interpreter.AccessError, match="is the mask missing") as caught:
            kernel[(1,)](x, y, out, 100, BLOCK=128)
        assert message in str(caught.value)
        assert (x == 1).all() and (y == 1).all() and (out == 1).all()


@triton.jit
def through_helper(x, y, out, n, BLOCK: tl.constexpr):
    load_past_end(x, y, out, n, BLOCK)


def test_error_in_a_helper_is_still_an_access_error():
    x, y, out = torch.ones(3, 100)
    with pytest.raises(
        IndexError, match="kernel through_helper: load of x at element 100"
    ) as error:
        through_helper[(1,)](x, y, out, 100, BLOCK=128)
    *_, helper, line = [str(entry.statement).strip() for entry in error.traceback]
    assert helper.startswith("load_past_end(x, y") and line.startswith(
        "tl.store(out + i, tl.load(x"
    )


def test_a_view_ends_where_the_view_ends():
    storage = torch.zeros(200)
    with pytest.raises(interpreter.AccessError, match="out has 100 elements"):
        store_past_end[(1,)](torch.ones(100), torch.ones(100), storage[:100], 100, BLOCK=128)
    assert (storage == 0).all()
    rows = torch.zeros(4, 64)[:, :16]  # rows 64 apart: the last element is 3 * 64 + 15
    with pytest.raises(interpreter.AccessError, match="out has 208 elements"):
        store_past_end[(1,)](torch.ones(300), torch.ones(1), rows, 208, BLOCK=256)


def test_an_empty_tensor_has_no_element():
    with pytest.raises(interpreter.AccessError, match="x has 0 elements"):
        load_past_end[(1,)](torch.ones(0), torch.ones(1), torch.ones(1), 1, BLOCK=1)


@triton.jit
def through_table(table, out, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    pointer = tl.load(table).to(tl.pointer_type(tl.float32))
    tl.store(out + i, tl.load(pointer + i))


def test_pointers_read_from_memory():
    out = torch.zeros(16)
    for address in (0, 12345):
        with pytest.raises(interpreter.AccessError, match="in no tensor of this launch"):
            through_table[(1,)](torch.tensor([address]), out, BLOCK=16)
    x = torch.arange(16.0)
    with pytest.raises(interpreter.AccessError, match="in no tensor of this launch"):
        through_table[(1,)](torch.tensor([x.data_ptr()]), out, BLOCK=16)
    with interpreter.reachable(x):
        through_table[(1,)](torch.tensor([x.data_ptr()]), out, BLOCK=16)
    assert torch.equal(out, x)


def test_inactive_lanes_may_point_anywhere():
    x, y, out = torch.ones(3, 100)
    add[(1,)](x, y, out, 100, BLOCK=1024)
    assert (out == 2).all()


@triton.jit
def copy_by_descriptor(source, target, rows, columns, M: tl.constexpr, N: tl.constexpr):
    target = tl.make_tensor_descriptor(target, [rows, columns], [columns, 1], [M, N])
    m, n = tl.program_id(0) * M, tl.program_id(1) * N
    target.store([m, n], source.load([m, n]))


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e5m2], ids=str)
def test_descriptors_clip_at_the_edge(dtype):
    x = torch.randn(50, 48).to(dtype)
    out = torch.zeros(50, 48).to(dtype)
    source = TensorDescriptor.from_tensor(x, [32, 16])
    copy_by_descriptor[(2, 3)](source, out, 50, 48, M=32, N=16)
    assert torch.equal(out.float(), x.float())


def test_a_descriptor_larger_than_its_tensor():
    x, out = torch.randn(64, 48), torch.zeros(50, 48)
    source = TensorDescriptor.from_tensor(x, [32, 16])
    with pytest.raises(interpreter.AccessError, match="store of target at element 2400"):
        copy_by_descriptor[(2, 3)](source, out, 64, 48, M=32, N=16)


@triton.jit
def copy_by_block_pointer(source, target, rows, columns, CHECK: tl.constexpr):
    shape = (rows, columns)
    m = tl.program_id(0) * 16
    source = tl.make_block_ptr(source, shape, (columns, 1), (m, 0), (16, 16), (1, 0))
    target = tl.make_block_ptr(target, shape, (columns, 1), (m, 0), (16, 16), (1, 0))
    for _ in range(0, columns, 16):
        tl.store(target, tl.load(source, boundary_check=CHECK), boundary_check=CHECK)
        source, target = tl.advance(source, (0, 16)), tl.advance(target, (0, 16))


def test_block_pointers_silently(capfd):
    x, out = torch.randn(50, 40).bfloat16(), torch.zeros(50, 40).bfloat16()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        copy_by_block_pointer[(4,)](x, out, 50, 40, CHECK=(0, 1))
    assert torch.equal(x, out)
    with pytest.raises(interpreter.AccessError, match="load of source at element 2000"):
        copy_by_block_pointer[(4,)](x, out, 50, 40, CHECK=(1,))
    assert capfd.readouterr().err == ""


# --- masked lanes of a load without `other`


@triton.jit
def sum_of_all_lanes(x, out, n, OTHER: tl.constexpr, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out, tl.sum(tl.load(x + i, mask=i < n, other=OTHER)))


FLOATS = [torch.float64, torch.float32, torch.float16, torch.bfloat16]
FLOATS += [torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_a_missing_other_shows_as_nan(dtype):
    x, out = torch.ones(10).to(dtype), torch.zeros(1)
    sum_of_all_lanes[(1,)](x, out, 10, 0.0, BLOCK=16)
    assert out.item() == 10
    sum_of_all_lanes[(1,)](x, out, 10, None, BLOCK=16)
    assert out.isnan().all()
    sum_of_all_lanes[(1,)](torch.ones(16).to(dtype), out, 16, None, BLOCK=16)  # no masked lane
    assert out.item() == 16


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32, torch.int16, torch.uint8], ids=str)
def test_a_missing_other_of_whole_numbers_shows_too(dtype):
    x, out = torch.ones(15, dtype=dtype), torch.zeros(1, dtype=torch.int64)
    sum_of_all_lanes[(1,)](x, out, 15, 0, BLOCK=16)
    assert out.item() == 15
    sum_of_all_lanes[(1,)](x, out, 15, None, BLOCK=16)
    bytes_of_5a = int.from_bytes(b"\x5a" * dtype.itemsize, "little")
    assert out.item() in (15 + bytes_of_5a, 15 + bytes_of_5a - 2**64)


@triton.jit
def follow(table, x, out, n, BLOCK: tl.constexpr):
    i = tl.arange(0, BLOCK)
    tl.store(out + i, tl.load(x + tl.load(table + i, mask=i < n)), mask=i < n)


def test_an_index_of_a_masked_lane_leads_nowhere():
    table, x, out = torch.zeros(10, dtype=torch.int32), torch.ones(4), torch.zeros(10)
    with pytest.raises(interpreter.AccessError, match="load of x at element 1515870810"):
        follow[(1,)](table, x, out, 10, BLOCK=16)


@triton.jit
def block_without_padding(x, out, rows):
    source = tl.make_block_ptr(x, (rows,), (1,), (0,), (16,), (0,))
    tl.store(out, tl.sum(tl.load(source, boundary_check=(0,))))


def test_a_block_pointer_without_padding_shows_too():
    out = torch.zeros(1)
    block_without_padding[(1,)](torch.ones(16), out, 16)
    assert out.item() == 16
    block_without_padding[(1,)](torch.ones(10), out, 10)
    assert out.isnan().all()
