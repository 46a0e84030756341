"""One decode step captured in a CUDA graph, and replayed while the text grows.

A replay launches the same kernels with the same addresses: no Python, no launches one by one. That
it still computes the *next* step rests on the cache: lengths lie in device memory, the step raises
them itself, and positions, places and the keys that attention sees are all read from there.
"""

import torch

from kernelbook import backend
from kernelbook.model.device_cache import DeviceCache

WARM_UPS = 2  # compile and allocate before the capture, which can do neither


class CapturedStep:
    """`step(tokens [B, 1]) -> logits [B, 1, vocab]`: the same tensor each time, overwritten."""

    def __init__(self, model, cache: DeviceCache):
        self.cache = cache
        self.tokens = torch.zeros(len(cache.counted), 1, dtype=torch.long, device=model.device)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(WARM_UPS):
                with cache.undone():
                    model(self.tokens, cache=cache)
        torch.cuda.current_stream().wait_stream(side)
        self.graph = torch.cuda.CUDAGraph()
        counted = cache.counted  # recording counts on the host, too, but runs nothing
        with torch.cuda.graph(self.graph):
            self.logits = model(self.tokens, cache=cache)
        cache.counted = counted

    @torch.inference_mode()
    def __call__(self, tokens: torch.Tensor) -> torch.Tensor:
        """The next step; ValueError if the cache is full, which a replay could not say."""
        self.cache.check_room(1)
        self.tokens.copy_(tokens)
        self.graph.replay()
        self.cache.count(1)
        return self.logits


@torch.inference_mode()
def capture(model, cache: DeviceCache) -> CapturedStep:
    """Record one decode step of `model` through `cache`; lengths are as before afterwards.

    The graph keeps the functions that the model uses now, its weights and the cache. Raises
    ValueError for a cache whose length is on the host, and RuntimeError without a GPU.
    """
    if not isinstance(cache, DeviceCache):
        raise ValueError(
            f"{type(cache).__name__} keeps its length on the host: every replay would write to "
            "the same place. Take a SplitCache, PagedCache or another of decode_caches."
        )
    if not backend.GPU:
        raise RuntimeError(
            "a CUDA graph needs a GPU, and there is none here: call model(tokens, cache=cache), "
            "or read recorded measurements with kernelbook.records"
        )
    return CapturedStep(model, cache)
