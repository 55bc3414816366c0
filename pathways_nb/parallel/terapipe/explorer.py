"""``pw.terapipe.explore``: the optimal token slices of a cost, with sizes and constants that can be changed.

The explorer holds the choices and what comes of them and needs no notebook, so that it is tested as plain Python;
``pathways_widgets.explorers.token_controls`` adds the controls.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import traitlets as t

from pathways_nb.errors import PathwaysError, UsageError
from pathways_nb.parallel.terapipe.slice_costs import Hinge, TableCost
from pathways_nb.parallel.terapipe.slicing import Slicing
from pathways_nb.parallel.terapipe.slicing_picture import SlicingPicture, picture_of

SIZES = ("stages", "length", "batch", "granularity", "uniform")
CONSTANTS = Hinge._fields
_LENGTH = 2048
"""Tokens of a sequence, unless a table has another length."""


class TokenExplorer(t.HasTraits):
    """The optimal token slices beside uniform ones; every choice can be set from Python, too.

    A choice that cannot be planned shows its error in place of the pictures.
    """

    cost = t.Any(None, allow_none=True, help="Function of (sequences, tokens, context); None for the formula.")
    stages = t.Int(48, help="K, stages of the pipeline.")
    length = t.Int(_LENGTH, help="L, tokens of a sequence.")
    batch = t.Int(1, help="B, number of sequences.")
    granularity = t.Int(8, help="Tokens; each slice is a multiple of it.")
    uniform = t.Int(8, help="Number of slices of the uniform slicing to compare with.")
    floor = t.Float(Hinge().floor, help="Seconds of the shortest slices, in the formula.")
    fixed = t.Float(Hinge().fixed, help="Seconds of each slice above the floor.")
    per_token = t.Float(Hinge().per_token, help="Seconds of a token.")
    per_pair = t.Float(Hinge().per_pair, help="Seconds of a pair of a token and one that it may attend to.")

    def __init__(self, **choices: Any):
        super().__init__(**choices)
        self._kept: tuple[tuple[Any, ...], SlicingPicture] | None = None

    @property
    def choices(self) -> tuple[str, ...]:
        """Names of what can be chosen: sizes, and the constants of the formula where it is the cost."""
        return SIZES if self.cost is not None else (*SIZES, *CONSTANTS)

    @property
    def picture(self) -> SlicingPicture:
        """What is drawn for the present choices, or their error."""
        chosen = tuple(getattr(self, name) for name in ("cost", *SIZES, *CONSTANTS))
        if self._kept is None or self._kept[0] != chosen:
            self._kept = chosen, self._made()
        return self._kept[1]

    @property
    def planned(self) -> Slicing:
        """The optimum.

        Raises:
            UsageError: the choices are refused, and why.
        """
        if self.picture.planned is None:
            raise UsageError(self.picture.error)
        return self.picture.planned

    def savefig(self, path: str | Path, width: str | float = 900) -> None:
        """Write the pictures to a file.

        Args:
            path: file name that ends in ``.svg`` or ``.png``.
            width: of the picture, as for ``Run.savefig``.
        """
        from pathways_widgets.explorers.token_display import write

        write(self.picture, path, width)

    def _made(self) -> SlicingPicture:
        """Return the picture of the present choices."""
        formula = Hinge(*(getattr(self, name) for name in CONSTANTS))
        sizes = {name: getattr(self, name) for name in SIZES}
        try:
            return picture_of(formula if self.cost is None else self.cost, **sizes)
        except PathwaysError as refused:
            return SlicingPicture(error=str(refused))
        except Exception as failed:  # a user's cost may raise anything; the controls stay
            return SlicingPicture(error=f"the cost failed: {type(failed).__name__}: {failed}")

    def _ipython_display_(self) -> None:
        from pathways_widgets.explorers.token_controls import display_explorer

        display_explorer(self)

    def __repr__(self) -> str:
        return repr(self.picture)


def explore(
    cost: Any = None, *, length: int | None = None, stages: int = 48, batch: int = 1, granularity: int = 8,
    uniform: int = 8, **constants: float,
) -> TokenExplorer:  # fmt: skip
    """Return an explorer of token slices: controls as the last expression of a cell, attributes from Python.

    The optimum stands beside uniform slicings, with the cost of each slice and both terms of the latency.

    Args:
        cost: as for ``plan``; ``None`` for ``max(floor, fixed + per_token · b l + per_pair · b l (l + c))``.
        length: L, tokens of a sequence; ``None`` for 2048, or the length of a table.
        stages: K, number of stages.
        batch: B, number of sequences.
        granularity: tokens; each slice is a multiple of it. The unit of a table.
        uniform: number of slices of a uniform slicing to compare with.
        constants: of the formula in seconds: ``floor``, ``fixed``, ``per_token``, ``per_pair``; without, those of 175B.

    Raises:
        UsageError: a cost that is no function and no table, or constants that are unknown or beside a cost.
    """
    for name in constants:
        if name not in CONSTANTS or cost is not None:
            known = "a cost has no constants" if cost is not None else f"all: {', '.join(CONSTANTS)}"
            raise UsageError(f"terapipe.explore: there is no {name!r} to choose; {known}.")
    if cost is not None and not callable(cost):
        cost = TableCost(cost, granularity)
    length = getattr(cost, "length", _LENGTH) if length is None else length
    sizes = dict(zip(SIZES, (stages, length, batch, granularity, uniform), strict=True))
    return TokenExplorer(cost=cost, **sizes, **constants)
