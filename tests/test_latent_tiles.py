"""One padded tile against two: the same numbers, and the resources that were predicted."""

import pytest
import torch

from kernelbook import checks, latent_tiles
from kernelbook.kernels import attention_mla

SMALL = latent_tiles.Tile(16, 32, 8, 2)


def case(batch=2, heads=20, tokens=70, dtype=torch.float32):
    return (torch.randn(batch, n, 576).to(dtype) for n in (heads, tokens))


@pytest.mark.parametrize("way", ["one", "two"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_both_ways_give_mla(way, dtype):
    q, cache = case(dtype=dtype)
    lengths = torch.full((2,), 70, dtype=torch.int32)
    expected = checks.reference64(
        attention_mla.reference, q, cache[..., :512], cache[..., 512:], lengths
    )
    with checks.poisoned_memory():
        checks.check(latent_tiles.attend(q, cache, way, SMALL), expected)


def test_predictions_by_hand():
    one, two = (latent_tiles.predict(way) for way in ("one", "two"))
    assert one == latent_tiles.Prediction((1024,), 2 * 32 * 1024 * 2, 32 * 1024 // 256, 44)
    assert two == latent_tiles.Prediction((512, 64), 2 * 32 * 576 * 2, 32 * 512 // 256, 0)


def test_the_compiler_finds_what_was_predicted():
    found = {way: reports[0] for way, reports in latent_tiles.reports().items()}
    for way, report in found.items():
        assert report.refusal is None
        more = report.shared_bytes - latent_tiles.predict(way).shared_bytes
        assert 0 <= more <= 4096, "beside the tiles, room for reductions"
    more = latent_tiles.predict("one").accumulator - latent_tiles.predict("two").accumulator
    assert found["one"].registers - found["two"].registers >= more == 64
    assert found["two"].spill_bytes == 0, "one tile is at the limit, and spills with triton 3.6"


def test_a_tile_of_64_heads_fits_only_in_two():
    found = latent_tiles.reports(latent_tiles.Tile(64, 32, 8, 2))
    assert "256 KiB of shared memory" in found["one"][0].refusal
    assert found["two"][0].refusal is None


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"way": "three"}, '"one" tile or "two", got'),
        ({"q": torch.zeros(1, 4, 512)}, r"q must be \[B, H, 576\]"),
        ({"cache": torch.zeros(2, 8, 576)}, "agree in batch"),
        ({"cache": torch.zeros(1, 8, 576).half()}, "agree in batch and dtype"),
        ({"cache": torch.zeros(1, 576, 8).mT}, "must be contiguous"),
    ],
)
def test_what_is_refused(change, message):
    arguments = {"q": torch.zeros(1, 4, 576), "cache": torch.zeros(1, 8, 576)} | change
    with pytest.raises(ValueError, match=message):
        latent_tiles.attend(**arguments)
