"""What `dram_bytes` runs under the profiler: each kernel once, on random data, sizes by name.

python -m benchmarks._dram_driver large|small
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch

from kernelbook import backend
from kernelbook.kernels import attention_naive, copy, elementwise_chain, matmul, row_sum
from kernelbook.kernels import attention_prefill as prefill
from kernelbook.work import Work

HALF = torch.float16
HEADS = {"large": (16, 32, 8192, 128), "small": (1, 2, 512, 64)}  # tiled: B, H, S, D
SCORES = {"large": (1, 8, 8192, 64), "small": (1, 2, 512, 64)}  # naive: B, H, S, D
ROWS = {"large": (65536, 8192), "small": (256, 4096)}
PRODUCT = {"large": (24576, 24576, 1024), "small": (512, 512, 256)}  # M, N, K
ELEMENTS = {"large": 2**29, "small": 2**20}


@dataclass(frozen=True)
class Case:
    """One computation: inputs' shapes, the call, its shape for the record, its kernels' work."""

    name: str
    inputs: tuple[tuple[int, ...], ...]
    call: Callable
    shape: dict
    work: dict[str, Work]

    def tensors(self, device: str) -> list[torch.Tensor]:
        """Fresh random inputs, of unit variance."""
        return [torch.randn(s, device=device, dtype=torch.float32).to(HALF) for s in self.inputs]


def _attention(name, sizes, call, work) -> Case:
    batch, heads, length, head_dim = sizes
    shape = {"batch": batch, "heads": heads, "n": length, "head_dim": head_dim}
    return Case(name, (sizes,) * 3, call, shape, work)


def cases(size: str) -> list[Case]:
    """The six computations; at "large" the memory they write or read is 1 GB or more."""
    n, rows, product = ELEMENTS[size], ROWS[size], PRODUCT[size]
    m, columns, k = product
    b, h, s, d = SCORES[size]
    naive_work = attention_naive.work_by_kernel(b, h, h, s, s, d, HALF)
    b, h, s, d = HEADS[size]
    tiled_work = prefill.work(b, h, h, s, s, d, HALF)
    return [
        Case("copy", ((n,),), copy.copy, {"elements": n}, {"copy_kernel": copy.work(n, HALF)}),
        Case(
            "row_sum",
            (rows,),
            row_sum.row_sum,
            {"rows": rows[0], "columns": rows[1]},
            {"row_sum_kernel": row_sum.work(*rows, HALF)},
        ),
        Case(
            "elementwise_chain",
            ((n,), (n,)),
            lambda x, y: elementwise_chain.elementwise_chain(x, y, 1.5),
            {"elements": n},
            {"elementwise_chain_kernel": elementwise_chain.work(n, HALF)},
        ),
        Case(
            "matmul",
            ((m, k), (k, columns)),
            matmul.matmul,
            {"m": m, "n": columns, "k": k},
            {"matmul_kernel": matmul.work(m, columns, k, HALF)},
        ),
        _attention("attention_naive", SCORES[size], attention_naive.attention_naive, naive_work),
        _attention(
            "attention_prefill",
            HEADS[size],
            prefill.attention_prefill,
            {"attention_prefill_kernel": tiled_work},
        ),
    ]


def main(size: str) -> None:
    """Run every case once on the GPU; one case's memory is free before the next begins."""
    for case in cases(size):
        if size == "large" and backend.machine().memory_bytes < 16 * 2**30:
            raise SystemExit("the large cases need 16 GiB of GPU memory")
        out = case.call(*case.tensors("cuda"))
        torch.cuda.synchronize()
        assert not out.float().mean().isnan()
        del out
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main(sys.argv[1])
