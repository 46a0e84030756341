"""Drafts by lookup: what followed the last tokens where they stood before in the text.

No model drafts: names, phrases and loops repeat, and where they do the guess is free. Several
earlier places give several continuations; put together they are a tree, which the model verifies in
one step (`speculative`). Source: Saxena, Prompt Lookup Decoding (2023); Miao et al., SpecInfer
(2023), for trees.
"""

from dataclasses import dataclass, field

LONGEST = 3  # tokens that an earlier place must share with the end of the text, at most


def places(text: list[int], longest: int = LONGEST) -> list[int]:
    """Where in the text the next token may have stood before: longest match first, then newest.

    places([1, 2, 9, 1, 2]) is [2]: after the earlier 1, 2 stands text[2].
    """
    found = []
    for length in range(min(longest, len(text) - 1), 0, -1):
        end = text[-length:]
        for start in range(len(text) - length - 1, -1, -1):
            if text[start : start + length] == end and start + length not in found:
                found.append(start + length)
    return found


@dataclass
class Tree:
    """Drafted tokens: node 0 is the last token of the text, a node's parent comes before it."""

    tokens: list[int]
    parents: list[int] = field(default_factory=lambda: [-1])

    def add(self, chain: list[int], most: int):
        """Put a continuation of node 0 in, sharing nodes with earlier ones; up to `most` nodes."""
        node = 0
        for token in chain:
            child = self.child(node, token)
            if child is None:
                if len(self.tokens) >= most:
                    return
                child = len(self.tokens)
                self.tokens.append(token)
                self.parents.append(node)
            node = child

    def child(self, node: int, token: int) -> int | None:
        """The child of `node` that guesses `token`, if there is one."""
        for index, parent in enumerate(self.parents):
            if parent == node and self.tokens[index] == token:
                return index
        return None

    def depths(self) -> list[int]:
        """Tokens between each node and node 0: how far behind it in the text it stands."""
        found = []
        for parent in self.parents:
            found.append(found[parent] + 1 if parent >= 0 else 0)
        return found

    def accepted(self, choices: list[int]) -> list[int]:
        """Nodes from 0 on whose guesses the model would have chosen, a path.

        choices  the model's token after each node; that after the last node of the path is new
        """
        path = [0]
        while (node := self.child(path[-1], choices[path[-1]])) is not None:
            path.append(node)
        return path


def lookup(text: list[int], most: int = 16, depth: int = 8, longest: int = LONGEST) -> Tree:
    """A tree of up to `most` nodes from all earlier places, each up to `depth` tokens long."""
    tree = Tree([text[-1]])
    for place in places(text, longest):
        if len(tree.tokens) >= most:
            break
        tree.add(text[place : place + depth], most)
    return tree


def chain(text: list[int], most: int = 16, longest: int = LONGEST) -> Tree:
    """The best earlier place alone: a tree without branches, up to `most` nodes."""
    tree = Tree([text[-1]])
    for place in places(text, longest)[:1]:
        tree.add(text[place : place + most - 1], most)
    return tree
