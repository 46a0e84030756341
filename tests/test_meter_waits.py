"""What makes the CPU wait for a device, counted once each; what does not, not."""

import pytest
import torch
from metered import put

from kernelbook import meter


def branch(x):
    return 1 if x.sum() > 0 else 0


WAITS = {
    "item": lambda x: x[0].item(),
    "tolist": lambda x: x.tolist(),
    "cpu": lambda x: x.cpu(),
    "to": lambda x: x.to("cpu"),
    "to keyword": lambda x: x.to(device="cpu", dtype=torch.float16),
    "numpy": lambda x: x.numpy(),
    "bool": branch,
    "int": lambda x: int(x[0]),
    "float": lambda x: float(x[0]),
    "index": lambda x: range(x.argmax()),
    "print": print,
    "repr": repr,
    "str": str,
    "format": lambda x: f"{x[0]:.1f}",
    "mask": lambda x: x[x > 0],
    "mask in a tuple": lambda x: x.view(2, 4)[:, torch.tensor([True, False, True, True])],
    "nonzero": lambda x: x.nonzero(),
    "torch.nonzero": torch.nonzero,
    "where": torch.where,
    "masked_select": lambda x: x.masked_select(x > 0),
    "unique": torch.unique,
    "equal": lambda x: torch.equal(x, x),
    "allclose": lambda x: torch.allclose(x, x),
    "in": lambda x: 3.0 in x,
    "synchronize": lambda x: torch.cuda.synchronize(),
    "stream": lambda x: torch.cuda.current_stream().synchronize(),
    "event": lambda x: torch.cuda.Event(enable_timing=True).synchronize(),
    "copy to the host": lambda x: torch.empty(8, pin_memory=True).copy_(x),
    "repeats": lambda x: x.repeat_interleave(torch.ones(8, dtype=torch.long)),
    "tensor as index": lambda x: x[torch.tensor(3)],
    "tensor as index of a write": lambda x: x.__setitem__(torch.tensor(3), 1.0),
    "tensor as bound": lambda x: x[: torch.tensor(3)],
    "tensor as bound of a column": lambda x: x.view(2, 4)[:, torch.tensor(3)],
    "narrow": lambda x: x.narrow(0, torch.tensor(3), 2),
    "tensor as range": lambda x: torch.arange(torch.tensor(3)),
    "tensor as size": lambda x: torch.zeros(torch.tensor(3), 2),
    "tensor as factor": lambda x: torch.add(x, x, alpha=torch.tensor(2)),
    "host tensor to a device's bound": lambda x: x.pin_memory()[: x.argmax()],
    "number of classes": lambda x: torch.nn.functional.one_hot(x.long()),
}


NO_WAITS = {
    "arithmetic": lambda x: (x * 2).sum(),
    "indices": lambda x: x[torch.tensor([1, 2])],
    "masked write of one value": lambda x: x.__setitem__(x > 0, 1.0),
    "where": lambda x: torch.where(x > 0, x, 0),
    "asynchronous": lambda x: x.to("cpu", non_blocking=True),
    "to a dtype": lambda x: x.to(torch.float16),
    "to the device": lambda x: x.to("cuda"),
    "on the device": lambda x: torch.zeros(3, device="cuda:0"),
    "shape": lambda x: x.shape[0] + len(x) + x.numel(),
    "loop": lambda x: [row for row in x.view(2, 4)],
    "asynchronous copy": lambda x: torch.empty(8, pin_memory=True).copy_(x, non_blocking=True),
    "pinned": lambda x: x.pin_memory().tolist(),
    "events": lambda x: torch.cuda.Event().record(torch.cuda.Stream()),
    "tensor as value": lambda x: x.__setitem__(0, x.sum()),
    "tensor as operand": lambda x: x + torch.tensor(3),
    "tensor of indices": lambda x: x[torch.tensor([3])],
    "classes given": lambda x: torch.nn.functional.one_hot(x.long(), 10),
    "sampling": lambda x: torch.multinomial(x, 1),
    "bound on the host": lambda x: x[: x.pin_memory().long()[3]],
}


@pytest.mark.parametrize("name", WAITS)
def test_each_wait_counts_once(name, capsys):
    assert meter.count(WAITS[name], torch.arange(8.0)).waits_count == 1


@pytest.mark.parametrize("name", NO_WAITS)
def test_what_is_no_wait(name):
    assert meter.count(NO_WAITS[name], torch.arange(8.0)).waits == []


def test_reading_a_host_copy_waits_once():
    def read(x):
        host = x.cpu()
        return host.tolist(), host[0].item() if False else host.numpy()

    assert meter.count(read, torch.ones(4)).waits_count == 1


HOST_READS = {
    "items of a row": lambda x: [value.item() for value in x.cpu()[0]],
    "rows": lambda x: [row.tolist() for row in x.cpu()],
    "branch on a result": lambda x: bool((x.cpu() > 0).all()),
    "mask": lambda x: x.cpu()[x.view(-1).pin_memory().view(4, 8) > 0].numpy(),
    "largest": lambda x: x.cpu().half().T.topk(2).values.tolist(),
    "its own index": lambda x: (host := x.cpu())[host.argmax() // 8].sum().item(),
}


@pytest.mark.parametrize("name", HOST_READS)
def test_what_is_made_of_a_host_copy_is_the_hosts(name):
    counts = meter.count(HOST_READS[name], torch.randn(4, 8))
    assert counts.waits_count == 1 and counts.waits[0].startswith("cpu in <lambda>")
    assert [operation.name for operation in counts.operations] == []


@pytest.mark.parametrize("back", ["cuda", "to", "to x.device", "to x", "mixed"])
def test_a_host_copy_that_goes_back_is_the_devices(back):
    def there_and_back(x):
        host = x.cpu() + 1
        ways = {"cuda": host.cuda, "to": lambda: host.to("cuda"), "to x": lambda: host.to(x)}
        ways |= {"to x.device": lambda: host.to(x.device), "mixed": lambda: x.copy_(host)}
        return (ways[back]() * 2).sum().item()

    counts = meter.count(there_and_back, torch.ones(4))
    assert [wait.split()[0] for wait in counts.waits] == ["cpu", "item"]
    assert [o.name for o in counts.operations if o.name != "copy_"] == ["mul", "sum"]


def test_reading_is_no_operation(capsys):
    def read(x):
        print(x)
        return x.cpu(), f"{x}"

    assert meter.count(read, torch.randn(100)).operations == []


def greedy(logits):
    tokens = []
    for step in logits:
        tokens.append(step.argmax().item())
    put(logits[0])
    return tokens


def test_waits_name_function_and_line():
    assert meter.count(greedy, torch.eye(3)).waits == [
        "item in greedy: tokens.append(step.argmax().item())",
        "item in greedy: tokens.append(step.argmax().item())",
        "item in greedy: tokens.append(step.argmax().item())",
        "int in put: x[x > 0] = torch.ones(int((x > 0).sum()))",
    ]
    assert meter.count(put, torch.ones(4)).waits == [
        "int in put: x[x > 0] = torch.ones(int((x > 0).sum()))",
        "indexing by a mask in put: x[x > 0] = torch.ones(int((x > 0).sum()))",
    ]
