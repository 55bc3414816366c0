"""What a reader has picked in a picture, by ids of nodes or by a part of a name, and which rows of a table that are.

A page finds the same rows in ``figure.js``; still pictures find them here.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np


class Picked(NamedTuple):
    """What is picked; nothing by default.

    Args:
        ids: of nodes (``views.node_id``); one that ends in ``#*`` stands for all nodes of a program.
        word: a part of a name, in small letters.
    """

    ids: frozenset[str] = frozenset()
    word: str = ""

    def with_nodes(self, nodes: Iterable[tuple[str, str]]) -> Picked:
        """Return the same with the ids of the nodes that are named so, given as pairs of name and id."""
        named = {node for name, node in nodes if node and self.word and self.word in name.lower()}
        return self._replace(ids=self.ids | named)

    def among(
        self, sources: Mapping[str, Mapping[str, Any]], table: str, ids: str, names: str
    ) -> dict[str, np.ndarray]:
        """Return for each row of a table whether it is picked, by the name of the table; empty if none is.

        Args:
            sources: tables by name.
            table: name of the table.
            ids: its column of ids, of which a row may have several, with spaces between them.
            names: its column of names.
        """
        columns, programs = sources[table], {_program(one) for one in self.ids}

        def has(node: str) -> bool:
            every = f"{_program(node)}#*"
            return node in self.ids or every in self.ids or (node == every and _program(node) in programs)

        fits = {text: any(map(has, text.split())) for text in set(columns[ids])}
        # A merged box has the name of none of its events.
        merged = columns.get("quality") or [""] * len(columns[ids])
        rows = [
            fits[text] or (bool(self.word) and self.word in name.lower() and how != "merged")
            for text, name, how in zip(columns[ids], columns[names], merged, strict=True)
        ]
        return {table: np.array(rows, bool)} if any(rows) else {}


def _program(node: str) -> str:
    return node.rpartition("#")[0]
