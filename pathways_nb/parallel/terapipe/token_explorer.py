"""``pw.terapipe.explore``: the optimal token slices of a cost, with sizes and constants that can be changed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import traitlets as t

from pathways_nb.errors import UsageError
from pathways_nb.parallel.terapipe.slice_costs import Hinge, TableCost
from pathways_nb.parallel.terapipe.slicing import Slicing
from pathways_nb.parallel.terapipe.slicing_picture import SlicingPicture, picture_of
from pathways_nb.results.explorer_base import Explorer, ExplorerButton, check_choices, result_or_error

if TYPE_CHECKING:
    from pathways_widgets.explorers.token_view import TokenSlices

SIZES = ("stages", "length", "batch", "granularity", "uniform")
CONSTANTS = Hinge._fields
_LENGTH = 2048
"""Tokens of a sequence, unless a table has another length."""


class TokenExplorer(Explorer[SlicingPicture]):
    """The optimal token slices compared with uniform ones; every choice can be set from Python, too.

    A choice that cannot be planned shows its error in place of the pictures. The constants ``floor``, ``fixed``,
    ``per_token`` and ``per_pair`` are in seconds.
    """

    cost = t.Any(None, allow_none=True, help="Function of (sequences, tokens, context); None for the formula.").tag(
        recompute=True
    )
    stages = t.Int(48, help="K, stages of the pipeline").tag(group="sizes", width=8.5)
    length = t.Int(_LENGTH, help="Tokens of a sequence").tag(group="sizes", width=8.5)
    batch = t.Int(1, help="Number of sequences").tag(group="sizes")
    granularity = t.Int(8, help="Tokens; each slice is a multiple of it").tag(group="sizes", width=11)
    uniform = t.Int(8, help="Number of slices of the uniform slicing below").tag(
        group="sizes", label="uniform slices", width=12.5
    )
    floor = t.Float(Hinge().floor, help="Time of the shortest slices").tag(
        group="constants", unit=("ms", -3), most=40.0
    )
    fixed = t.Float(Hinge().fixed, help="Time of each slice above the floor").tag(
        group="constants", unit=("ms", -3), most=40.0
    )
    per_token = t.Float(Hinge().per_token, help="Time of a token").tag(
        group="constants", label="per token", unit=("µs", -6), most=200.0
    )
    per_pair = t.Float(Hinge().per_pair, help="Time of a pair of a token and one that it may attend to").tag(
        group="constants", label="per pair", unit=("ns", -9), most=20.0
    )
    buttons = (ExplorerButton("SVG", "savefig", "token_slices.svg"),)
    notes: ClassVar[Mapping[str, str]] = {
        "constants": "max(floor, fixed + per token · b l + per pair · b l (l + c)) "
        "for l tokens after c, of b sequences together"
    }

    @property
    def choices(self) -> tuple[str, ...]:
        """Names of what can be chosen: sizes, and the constants of the formula where it is the cost."""
        return SIZES if self.cost is not None else (*SIZES, *CONSTANTS)

    @property
    def picture(self) -> SlicingPicture:
        """What is drawn for the present choices, or their error."""
        return self._result

    @property
    def planned(self) -> Slicing:
        """The optimum.

        Raises:
            UsageError: the choices are refused, and why.
        """
        if self.picture.planned is None:
            raise UsageError(self.picture.error)
        return self.picture.planned

    def make_drawing(self) -> TokenSlices:
        """Return what draws the slices, their cost and their latency."""
        from pathways_widgets.explorers.token_view import TokenSlices

        return TokenSlices()

    def _compute(self) -> SlicingPicture:
        cost = Hinge(*(getattr(self, name) for name in CONSTANTS)) if self.cost is None else self.cost
        sizes = {name: getattr(self, name) for name in SIZES}
        return result_or_error(lambda: picture_of(cost, **sizes), lambda error: SlicingPicture(error=error), "the cost")


def explore(
    cost: Any = None, *, length: int | None = None, stages: int = 48, batch: int = 1, granularity: int = 8,
    uniform: int = 8, **constants: float,
) -> TokenExplorer:  # fmt: skip
    """Return an explorer of token slices: controls as the last expression of a cell, attributes from Python.

    The optimum is compared with uniform slicings, with the cost of each slice and both terms of the latency.

    Args:
        cost: as for ``plan``; ``None`` for ``max(floor, fixed + per_token · b l + per_pair · b l (l + c))``.
        length: L, tokens of a sequence; ``None`` for 2048, or the length of a table.
        stages: K, number of stages.
        batch: B, number of sequences.
        granularity: tokens; each slice is a multiple of it. The unit of a table.
        uniform: number of slices of a uniform slicing to compare with.
        constants: of the formula in seconds: ``floor``, ``fixed``, ``per_token``, ``per_pair``; without, those of 175B.

    Raises:
        UsageError: a cost that is no function and no table, or constants that are unknown, or come with a cost.
    """
    if cost is not None:
        check_choices("terapipe.explore", constants, (), "; a cost has no constants.")
    check_choices("terapipe.explore", constants, CONSTANTS)
    if cost is not None and not callable(cost):
        cost = TableCost(cost, granularity)
    # A table ends at its own length; a function goes on.
    length = getattr(cost, "length", _LENGTH) if length is None else length
    sizes = dict(zip(SIZES, (stages, length, batch, granularity, uniform), strict=True))
    return TokenExplorer(cost=cost, **sizes, **constants)
