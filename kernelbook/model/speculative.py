"""Greedy speculative decoding: verify a tree of drafts in one step, keep the path that is right.

The step reads weights and KV once for all nodes of the tree. Where the model would have chosen a
node's guess, that token is accepted, and the token it chooses after the last one comes on top. So
the text is the greedy one, whatever is drafted; a draft only decides in how many steps.

    cache = SplitCache(model.config, batch, length + n + 16, model.dtype, model.device)
    written = generate_drafted(model, prompts, n, cache)

Source: Leviathan et al., Fast Inference from Transformers via Speculative Decoding (2023); Miao et
al., SpecInfer (2023).
"""

from dataclasses import dataclass

import torch

from kernelbook.kernels.attention_tree import attention_tree, pack_ancestors
from kernelbook.model.draft import Tree, lookup


def check_cache(cache):
    """ValueError for a cache of which `attention_tree` would not see all, or not the numbers."""
    if not getattr(cache, "takes_trees", False):
        got = type(cache).__name__
        raise ValueError(f"a tree of drafts is verified on a SplitCache or PagedCache, got {got}")


class TreeView:
    """A SplitCache or PagedCache during one verification; nodes are its next tokens.

    Node i is written at place length + i, but stands at position length + depth in the text, and
    sees the context, its ancestors and itself. `keep` then makes the accepted path the text.

    attention  `attention_tree` or its `reference`
    Raises ValueError for a cache whose keys a tree cannot be verified on.
    """

    def __init__(self, cache, trees: list[Tree], size: int, attention=attention_tree):
        check_cache(cache)
        device = cache.lengths.device
        parents = [tree.parents + [-1] * (size - len(tree.parents)) for tree in trees]
        depths = [tree.depths() + [0] * (size - len(tree.parents)) for tree in trees]
        self.cache, self.attention, self.capacity = cache, attention, cache.capacity
        self.ancestors = torch.stack([pack_ancestors(p) for p in parents]).to(device)  # [B, T]
        self.depths = torch.tensor(depths, device=device)  # [B, T]

    def positions(self, tokens: int) -> torch.Tensor:
        """Positions [B, T] in the text: nodes of one depth share one."""
        self.places = self.cache.positions(tokens)
        return self.places[:, :1] + self.depths

    def attend(self, layer: int, q, k, v, scale: float, functions) -> torch.Tensor:
        """Write the nodes' k and v, attend along the tree."""
        self.cache.write(layer, k, v)
        k, v, table = self.cache.kv(layer)
        lengths = self.cache.lengths
        return self.attention(q, k, v, self.ancestors, lengths, scale=scale, block_table=table)

    def advance(self, tokens: int):
        """Nothing yet: `keep` counts what is accepted."""

    def keep(self, paths: list[list[int]]):
        """Move each sequence's accepted nodes together, behind its text, and count them."""
        longest = max(len(path) for path in paths)
        padded = [path + list(range(len(path), longest)) for path in paths]  # onto themselves
        nodes = torch.tensor(padded, device=self.places.device)
        self.cache.move(self.places.gather(1, nodes), self.places[:, :longest])
        lengths = zip(self.cache.counted, paths, strict=True)
        self.cache.set_lengths([length + len(path) for length, path in lengths])


@dataclass(frozen=True)
class Drafted:
    """What was written, [B, n] tokens, and in how many steps."""

    tokens: torch.Tensor
    steps: int  # verifications, summed over sequences until each is done
    drafted: int  # guesses in their trees
    accepted: int  # guesses that became text

    @property
    def tokens_per_step(self) -> float:
        """Tokens of text that one verification of a sequence gave; 1 without drafts."""
        return (self.steps + self.accepted) / self.steps if self.steps else 1.0


def verify(model, cache, trees: list[Tree], size: int, attention=attention_tree):
    """The model's choice after each node, and the view that must `keep` paths: one step.

    Trees are padded to `size` nodes, so that every step has the same shape. Choices come to the
    host, which draws up the next trees: one wait a step.
    """
    view = TreeView(cache, trees, size, attention)
    padded = [tree.tokens + tree.tokens[:1] * (size - len(tree.tokens)) for tree in trees]
    logits = model(torch.tensor(padded, device=model.device), cache=view)  # [B, T, vocab]
    return logits.argmax(-1).tolist(), view


@torch.inference_mode()
def generate_drafted(
    model, tokens: torch.Tensor, n: int, cache, draft=lookup, size=16, attention=attention_tree
) -> Drafted:
    """The n tokens after `tokens` [B, S], greedy, by drafts and verification.

    cache  an empty SplitCache or PagedCache for S + n + size tokens: a tree stands behind the text
    draft  (text, most) -> Tree of up to `most` nodes: `draft.lookup`, `draft.chain`
    size   nodes of a step's tree, up to 64; 1 is plain decode
    Raises ValueError for a cache that is too small, or of another kind.
    """
    check_cache(cache)
    needed = tokens.shape[1] + n + size
    if cache.capacity < needed:
        raise ValueError(f"text and tree need a cache of {needed} tokens, got {cache.capacity}")
    first = model(tokens.to(model.device), cache=cache, last_only=True).argmax(-1)  # [B, 1]
    texts = torch.cat((tokens.to(model.device), first), dim=1).tolist()
    goal, steps, drafted, accepted = tokens.shape[1] + n, 0, 0, 0
    while min(map(len, texts)) < goal:
        trees = [draft(text, size) if len(text) < goal else Tree(text[-1:]) for text in texts]
        choices, view = verify(model, cache, trees, size, attention)
        paths = []
        for text, tree, chosen in zip(texts, trees, choices, strict=True):
            path = tree.accepted(chosen)[: goal - len(text)]
            text += [chosen[node] for node in path]
            paths.append(path)
            steps += len(path) > 0
            drafted += (len(tree.tokens) - 1) * (len(path) > 0)
            accepted += max(0, len(path) - 1)
        view.keep(paths)
    written = torch.tensor([text[-n:] for text in texts], device=model.device)
    return Drafted(written, steps, drafted, accepted)
