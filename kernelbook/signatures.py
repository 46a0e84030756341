"""How many CUDA graphs does a decode loop need? One for each distinct signature of its steps.

A captured graph replays the kernels that it saw, with the shapes and the addresses that it saw. A
step can be replayed only if its signature, shapes and addresses of the KV cache, has been captured
before. `plans` walks a workload of requests that come and go, and notes each step's signature for
five ways to keep KV:

    grown     one tensor [batch, longest], concatenated with the new tokens at each step
    doubled   one tensor [batch, capacity]; the capacity doubles when it is full
    slots     one tensor [most, max_len], reserved once; every step runs all slots
    paged     a pool of pages and a block table [batch, pages of max_len], both in fixed places
    bucketed  the same, batches padded to 1, 2, 4 ... rows

Lengths are data, read from memory by the kernel, so they are no part of a signature. Pure Python
and no randomness of its own but a seeded one: the same numbers on every machine.
"""

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from kernelbook import tables

BUCKETS = (1, 2, 4, 8, 16, 32)


class Request(NamedTuple):
    """A request: the step at which it arrives, tokens of its prompt, tokens that it generates."""

    arrival: int
    prompt: int
    new: int


class Signature(NamedTuple):
    """What a graph holds on to: the shape of the KV (or of its block table), and addresses."""

    shape: tuple[int, ...]
    addresses: tuple[int, ...]


Step = tuple[tuple[int, int], ...]  # (request, tokens of its KV after this step) of each row


def workload(requests: int = 64, seed: int = 0) -> list[Request]:
    """Requests with prompts of 64 to 1024 tokens and 16 to 256 new ones, up to 8 steps apart."""
    random_ = random.Random(seed)

    def draw(low: int, high: int) -> int:
        return low + int(random_.random() * (high - low + 1))  # random() is alike everywhere

    found, arrival = [], 0
    for _ in range(requests):
        arrival += draw(0, 8)
        found.append(Request(arrival, draw(64, 1024), draw(16, 256)))
    return found


def decode_steps(requests: Sequence[Request], most: int = 32) -> list[Step]:
    """The batch of each decode step: continuous batching, first come first served.

    Who arrives takes a free row, at most `most` of them; who has generated its tokens leaves it to
    others at the next step. Prefill is not shown: it happens before a request's first step here.
    Raises ValueError where a request has no prompt or generates nothing.
    """
    if any(r.prompt < 1 or r.new < 1 for r in requests) or most < 1:
        raise ValueError("every request needs a prompt and a new token, and a batch room for one")
    waiting = sorted(range(len(requests)), key=lambda i: (requests[i].arrival, i))
    running: dict[int, int] = {}  # request -> tokens generated
    steps, now = [], 0
    while waiting or running:
        while waiting and len(running) < most and requests[waiting[0]].arrival <= now:
            running[waiting.pop(0)] = 0
        running = {i: made + 1 for i, made in running.items()}
        if running:
            steps.append(tuple((i, requests[i].prompt + made) for i, made in running.items()))
        running = {i: made for i, made in running.items() if made < requests[i].new}
        now += 1
    return steps


def bucket_of(batch: int, buckets: Iterable[int] = BUCKETS) -> int:
    """The smallest bucket that holds a batch; ValueError where none does."""
    fitting = [bucket for bucket in buckets if bucket >= batch]
    if not fitting:
        raise ValueError(f"a batch of {batch} fits into none of the buckets {tuple(buckets)}")
    return min(fitting)


class Memory:
    """Addresses as a caching allocator gives them: the smallest free block that is large enough,
    split; neighbors that are free become one. Addresses and sizes are in tokens of KV."""

    def __init__(self):
        self.free = [(0, 2**60)]  # (start, size), in order of addresses
        self.used: dict[int, int] = {}
        self.peak = 0

    def allocate(self, size: int) -> int:
        """The address of `size` tokens."""
        start, room = min((b for b in self.free if b[1] >= size), key=lambda b: (b[1], b[0]))
        self.free.remove((start, room))
        if room > size:
            self.free.append((start + size, room - size))
            self.free.sort()
        self.used[start] = size
        self.peak = max(self.peak, sum(self.used.values()))
        return start

    def release(self, start: int) -> None:
        """Give a block back."""
        blocks = sorted([*self.free, (start, self.used.pop(start))])
        self.free = blocks[:1]
        for begin, size in blocks[1:]:
            last, room = self.free[-1]
            if last + room == begin:
                self.free[-1] = (last, room + size)
            else:
                self.free.append((begin, size))


@dataclass(frozen=True)
class Plan:
    """What one way to keep KV asks of CUDA graphs over a workload.

    signatures    of each step
    moved_tokens  tokens of KV copied because a tensor grew or its rows changed
    peak_tokens   tokens of KV that memory was held for at once
    idle_rows     rows that were computed for nobody, over all steps
    """

    name: str
    signatures: tuple[Signature, ...]
    moved_tokens: int
    peak_tokens: int
    idle_rows: int

    @property
    def steps(self) -> int:
        return len(self.signatures)

    @property
    def distinct(self) -> int:
        """Graphs to capture."""
        return len(set(self.signatures))

    @property
    def replayed(self) -> int:
        """Steps whose signature was there before."""
        return self.steps - self.distinct


def one_tensor(name: str, steps: Sequence[Step], capacity_of) -> Plan:
    """KV in one tensor [batch, capacity], made anew when rows change or the capacity does.

    capacity_of  longest length -> tokens of a row. Old and new tensor exist while one is copied.
    """
    memory, signatures = Memory(), []
    held, moved, address = None, 0, None
    before: dict[int, int] = {}
    for step in steps:
        rows, capacity = tuple(i for i, _ in step), capacity_of(max(n for _, n in step))
        if held != (rows, capacity):
            new = memory.allocate(len(rows) * capacity)
            if address is not None:
                memory.release(address)
            moved += sum(before.get(i, 0) for i in rows)
            held, address = (rows, capacity), new
        signatures.append(Signature((len(rows), capacity), (address,)))
        before = dict(step)
    return Plan(name, tuple(signatures), moved, memory.peak, 0)


def fixed_place(name: str, steps: Sequence[Step], rows_of, width: int, peak: int) -> Plan:
    """KV that never moves: only the number of rows can change a signature."""
    rows = [rows_of(len(step)) for step in steps]
    idle = sum(rows) - sum(map(len, steps))
    return Plan(name, tuple(Signature((n, width), (0,)) for n in rows), 0, peak, idle)


def pages_in_use(steps: Sequence[Step], page_size: int) -> int:
    """The most pages that any step's sequences lie on."""
    return max((sum(-(-n // page_size) for _, n in step) for step in steps), default=0)


def doubled_capacity(length: int, least: int = 256) -> int:
    """The smallest of 256, 512, 1024 ... that holds `length` tokens."""
    return max(least, 1 << (length - 1).bit_length())


def plans(
    requests: Sequence[Request],
    most: int = 32,
    page_size: int = 16,
    max_len: int = 2048,
    buckets: Sequence[int] = BUCKETS,
) -> dict[str, Plan]:
    """name -> Plan of the five ways, over the same decode steps.

    Raises ValueError where a request outgrows max_len, or a batch the largest bucket.
    """
    longest = max((r.prompt + r.new for r in requests), default=0)
    if longest > max_len:
        raise ValueError(f"a request grows to {longest} tokens, max_len is {max_len}")
    steps, pages = decode_steps(requests, most), -(-max_len // page_size)
    used = page_size * pages_in_use(steps, page_size)
    found = (
        one_tensor("grown", steps, lambda length: length),
        one_tensor("doubled", steps, doubled_capacity),
        fixed_place("slots", steps, lambda batch: most, max_len, most * max_len),
        fixed_place("paged", steps, lambda batch: batch, pages, used),
        fixed_place("bucketed", steps, lambda batch: bucket_of(batch, buckets), pages, used),
    )
    return {plan.name: plan for plan in found}


def table(found: dict[str, Plan]) -> str:
    """A line for each plan: graphs to capture, steps replayed, and what else it costs."""
    heads = ("KV", "steps", "graphs", "replayed", "tokens moved", "tokens held", "idle rows")
    rows = [
        (p.name, p.steps, p.distinct, p.replayed, p.moved_tokens, p.peak_tokens, p.idle_rows)
        for p in found.values()
    ]
    return tables.plain(heads, rows)
