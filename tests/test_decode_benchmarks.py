"""Benchmarks of decode: what they compare is right, and rows say what was launched.

Their own code runs on small CPU tensors; only the times are invented.
"""

import pytest
import torch
from synthetic_times import install, writer

from benchmarks import (
    _decode,
    decode_cross,
    decode_map,
    decode_merge,
    decode_persistent,
    decode_waves,
    dram_decode,
)
from kernelbook import backend, interpreter, meter
from kernelbook.kernels import attention_decode as decode
from kernelbook.kernels import attention_prefill as prefill

ALL = (
    decode_cross,
    decode_map,
    decode_merge,
    decode_persistent,
    decode_waves,
    dram_decode,
)


@pytest.fixture
def dry(monkeypatch, tmp_path):
    install(monkeypatch)
    return writer(tmp_path)


@pytest.fixture
def on_cpu(monkeypatch):
    monkeypatch.setattr(backend, "DEVICE", "cpu")


def variants(rows, **wanted) -> list[str]:
    """Variants of the rows that have these values, in order."""
    return [
        row["variant"]
        for row in rows
        if all(row.get(key, row["shape"].get(key)) == value for key, value in wanted.items())
    ]


def grid(call, *tensors) -> list[int]:
    """Programs of each launch of a call; nothing runs."""
    with interpreter.capture_launches() as launches:
        call(*tensors)
    return [launch.grid[0] for launch in launches]


def hollow(shape: dict):
    """Inputs of a shape without their numbers, of one sequence seen as many."""
    q = torch.empty(1, shape["query_heads"], shape["queries"], shape["head_dim"])
    kv = torch.empty(1, shape["kv_heads"], shape["lengths"], shape["head_dim"])
    q, kv = (x.to(_decode.DTYPE).expand(shape["batch"], -1, -1, -1) for x in (q, kv))
    return q, kv, kv


# --- shared --------------------------------------------------------------------------------


@pytest.mark.skipif(backend.GPU, reason="measures where there is a GPU")
@pytest.mark.parametrize("bench", ALL)
def test_without_a_gpu_nothing_is_recorded(bench, capsys):
    bench.run(None)
    assert "skipped, no GPU" in capsys.readouterr().out


def test_the_answer_by_heads_is_the_whole_answer():
    q, k, v = torch.randn(3, 6, 4, 8), torch.randn(3, 2, 9, 8), torch.randn(3, 2, 9, 8)
    whole = prefill.reference(q.double(), k.double(), v.double(), True)
    torch.testing.assert_close(_decode.answer64(q, k, v, True), whole)
    torch.testing.assert_close(_decode.expected(q, k, v, causal=True), whole[[0, 2]])


@pytest.mark.parametrize("shape", [
    _decode.shape_of(1, 8192), _decode.shape_of(18, 4096), _decode.shape_of(4, 512),
    _decode.shape_of(1, 1024, 100), {**_decode.shape_of(4, 2048), "kv_heads": 1},
])  # fmt: skip
def test_chosen_splits_and_programs_are_the_launchers(shape, on_cpu):
    chosen = _decode.chosen_splits(shape)
    tensors = hollow(shape)
    assert grid(decode.attention_decode, *tensors)[0] == _decode.programs(shape, chosen)


# --- the prefill kernel on decode's shapes -------------------------------------------------


def test_waves(dry, monkeypatch):
    monkeypatch.setattr(decode_waves, "LENGTHS", (64, 300))
    monkeypatch.setattr(decode_waves, "BATCHES", (3,))
    monkeypatch.setattr(decode_waves, "LENGTH", 64)
    decode_waves.run(dry)
    each = ["prefill_kernel", "split_kv", "naive", "sdpa_cudnn", "sdpa_flash"]
    assert variants(dry.rows) == 3 * each
    assert [row["variant"] for row in dry.rows[:5] if row["peer"]] == each[3:]


def test_programs_of_the_prefill_kernel_are_counted(on_cpu):
    shape = _decode.shape_of(4, 512)
    extra = decode_waves.extra(shape)
    tensors = hollow(shape)
    assert grid(prefill.attention_prefill, *tensors) == [extra["prefill_kernel"]["programs"]]
    assert extra["prefill_kernel"] == {"programs": 128, "sms": 132, "waves": 0.97}
    split = decode_waves.variants(shape)["split_kv"]
    assert grid(split, *tensors)[0] == extra["split_kv"]["programs"]
    assert _decode.prefill_programs(*tensors) == 128


# --- the cross -----------------------------------------------------------------------------


@pytest.fixture
def small_cross(dry, monkeypatch):
    monkeypatch.setattr(decode_cross, "KEYS", 64)
    monkeypatch.setattr(decode_cross, "CROSS", ((1, 64), (33, 33)))
    monkeypatch.setattr(decode_cross, "QUERIES", (1, 5))
    return dry


def test_cross(small_cross):
    decode_cross.run(small_cross)
    rows = small_cross.rows
    own = ["prefill_kernel", "decode_kernel"]
    peers = ["sdpa_cudnn", "sdpa_flash"]
    assert variants(rows, part="cross", queries=33) == [*own, "naive", *peers]
    assert variants(rows, part="queries", queries=5) == own + peers
    masks = {(row["shape"]["queries"], row["variant"]): row.get("mask") for row in rows}
    assert [masks[5, name] for name in peers] == ["dense", "lower right"]
    assert [masks[33, name] for name in peers] == ["causal", "causal"]
    assert [masks[1, name] for name in peers] == ["none", "none"]
    assert all(row["shape"]["causal"] for row in rows)


def test_a_kernel_that_ignores_the_mask_is_not_timed(small_cross, monkeypatch, capsys):
    def unmasked(q, k, v, causal):
        return prefill.attention_prefill(q, k, v)

    monkeypatch.setattr(decode_cross, "attention_prefill", unmasked)
    decode_cross.run(small_cross)
    assert "prefill_kernel skipped, AssertionError: relative error" in capsys.readouterr().out
    timed = variants(small_cross.rows, queries=5)
    assert "prefill_kernel" not in timed and "decode_kernel" in timed


# --- the map -------------------------------------------------------------------------------


@pytest.fixture
def small_map(dry, monkeypatch):
    monkeypatch.setattr(decode_map, "BATCHES", (1, 3))
    monkeypatch.setattr(decode_map, "LENGTHS", (64,))
    monkeypatch.setattr(decode_map, "LONGEST", 512)
    monkeypatch.setattr(decode_map, "LONGEST_BATCHES", (1,))
    monkeypatch.setattr(decode_map, "KV_HEADS", (2, 4))
    return dry


def test_map(small_map, capsys):
    decode_map.run(small_map)
    assert "skipped" not in capsys.readouterr().out
    long = {"lengths": 512, "kv_heads": 4}
    contiguous = ["split", "one_split", "sdpa_cudnn", "sdpa_flash"]
    assert variants(small_map.rows, layout="contiguous", **long) == contiguous
    assert variants(small_map.rows, layout="paged", **long) == [
        "split", "one_split", "gather_cudnn",
    ]  # fmt: skip
    short = variants(small_map.rows, layout="contiguous", batch=3, kv_heads=2)
    assert short == ["split", "sdpa_cudnn", "sdpa_flash"]  # one split is what is chosen
    paged = next(row for row in small_map.rows if row["shape"]["layout"] == "paged")
    assert paged["bytes"] - small_map.rows[0]["bytes"] == 4 + 4 * 64 // decode_map.PAGE


def test_pages_of_another_sequence_are_not_timed(small_map, monkeypatch, capsys):
    right = decode_map.on_pages

    def astray(splits, q, k, v, table, lengths):
        return right(splits, q, k, v, table.roll(1, 0), lengths)

    monkeypatch.setattr(decode_map, "on_pages", astray)
    monkeypatch.setattr(decode_map, "compile_all", lambda: None)
    cell = next(shape for shape in decode_map.shapes() if shape["batch"] == 3)
    monkeypatch.setattr(decode_map, "shapes", lambda: [cell])
    decode_map.run(small_map)
    assert variants(small_map.rows, layout="paged") == ["gather_cudnn"]
    assert "('paged', 'split') skipped, AssertionError" in capsys.readouterr().out


def test_large_pools_are_not_copied(on_cpu):
    few, many = _decode.shape_of(4, 32768), _decode.shape_of(64, 32768)
    assert ("paged", "gather_cudnn") in decode_map.variants(few)
    assert ("paged", "gather_cudnn") not in decode_map.variants(many)


def test_the_map_stops_in_time(small_map, monkeypatch, capsys):
    monkeypatch.setattr(decode_map, "LIMIT_S", -1)
    decode_map.run(small_map)
    assert small_map.rows == [] and "out of time" in capsys.readouterr().out


def test_the_map_covers_the_claim():
    shapes = decode_map.shapes()
    assert len(shapes) == 3 * (4 * 4 + 2)
    assert len({tuple(shape.values()) for shape in shapes}) == len(shapes)
    assert {shape["kv_heads"] for shape in shapes} == {1, 8, 32}


# --- merging -------------------------------------------------------------------------------


def test_merge(dry, monkeypatch):
    monkeypatch.setattr(decode_merge, "ROWS", ((1, 600),))
    monkeypatch.setattr(decode_merge, "SPLITS", (1, 4))
    decode_merge.run(dry)
    assert variants(dry.rows, splits=4) == ["last", "kernel", "no_merge"]
    assert {row["partial_bytes"] for row in dry.rows if row["shape"]["splits"] == 1} == {0}


def test_without_merging_one_kernel_is_left(on_cpu):
    tensors = hollow(_decode.shape_of(1, 1024))
    with_merge = decode_merge.variants(4)
    assert [len(grid(call, *tensors)) for call in with_merge.values()] == [1, 2, 1]
    with pytest.raises(ValueError), decode_merge.without_merge_kernel():
        raise ValueError
    assert len(grid(with_merge["kernel"], *tensors)) == 2


@pytest.mark.parametrize("splits", [2, 3])
def test_partial_bytes_are_what_the_kernels_move(splits, dry):
    shape = _decode.shape_of(2, 500)
    tensors = _decode.inputs(shape)
    counted = meter.count(decode_merge.variants(splits)["kernel"], *tensors)
    first, merging = counted.kernels
    moved = decode_merge.partial_bytes(shape, splits)
    assert moved["kernel"] == first.written + merging.read
    assert moved["no_merge"] == first.written
    assert decode_merge.kv_bytes(shape) == tensors[1].nbytes + tensors[2].nbytes


# --- persistence ---------------------------------------------------------------------------


def test_persistent(dry, monkeypatch):
    monkeypatch.setattr(decode_persistent, "BATCHES", (3,))
    monkeypatch.setattr(decode_persistent, "LENGTHS", (300,))
    decode_persistent.run(dry)
    assert variants(dry.rows) == ["plain", "persistent", "split", "splits_2"]


@pytest.mark.parametrize("batch, waves", [(8, 0.485), (18, 1.091), (49, 2.97)])
def test_programs_of_persistent_launches_are_counted(batch, waves, on_cpu):
    shape = _decode.shape_of(batch, 512)
    calls, extra = decode_persistent.variants(shape), decode_persistent.extra(shape)
    assert {fields["waves"] for fields in extra.values()} == {waves}
    tensors = hollow(shape)
    for name, call in calls.items():
        assert grid(call, *tensors)[0] == extra[name]["programs"], name
    assert extra["persistent"]["programs"] == min(132, 8 * batch)
