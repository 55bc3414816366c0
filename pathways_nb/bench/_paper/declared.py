"""Declaration of what is fitted and what is predicted, written before anything runs: no number of the paper is both.

A *fit* has parameters and the points that they are fitted on; with as many of one as of the other it proves nothing by
itself. Every other point is predicted, or says what kind of statement it is. The declaration is data in a file of its
own, and the table takes the role of each point from it.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

Role = Literal["fitted", "predicted", "relation", "by construction", "inverse"]
"""Role of a point.

``relation``: the paper tells (or is recalled to tell) what is more, not how much. ``by construction``: a unit test, no
evidence. ``inverse``: the unpublished quantity is solved for, from a published one.
"""


class PaperFit(NamedTuple):
    """Parameters, and the points, as (figure, name), that they are fitted on."""

    name: str
    parameters: tuple[str, ...]
    points: tuple[tuple[str, str], ...]

    @property
    def freedom(self) -> int:
        """Degrees of freedom, points less parameters; with none, a good fit says nothing."""
        return len(self.points) - len(self.parameters)


class TablePoint(NamedTuple):
    """One number of the table.

    Args:
        figure: of the paper.
        name: as in the published numbers, where those have it.
        role: fitted, predicted, or another kind of statement.
        by: name of the fit on which it rests; empty if on none.
    """

    figure: str
    name: str
    role: Role
    by: str = ""


FITS = (
    PaperFit("dispatch", ("fixed seconds of a call", "seconds of a call for each host"),
        (("figure 6", "16 hosts"), ("figure 6", "512 hosts"))),
    PaperFit("work", ("core-seconds for each token",), (("table 2", "S=4 M=16"),)),
    PaperFit("work and width", ("core-seconds for each token", "cost of each further core of a stage"),
        (("table 2, with width", "S=4 M=16"), ("table 2, with width", "S=8 M=32"))),
)  # fmt: skip
"""All fits, with the points that they are fitted on."""

_TABLE_2 = ("S=4 M=16", "S=8 M=32", "S=16 M=64", "S=16 M=64, 512 cores", "SPMD")


def _table_2(fit: PaperFit) -> tuple[TablePoint, ...]:
    """Return the points of Table 2 for one fit: its own points are fitted, all others predicted."""
    figure = fit.points[0][0]
    return tuple(
        TablePoint(figure, name, "fitted" if (figure, name) in fit.points else "predicted", fit.name)
        for name in _TABLE_2
    )


POINTS = (
    TablePoint("figure 5", "fused", "predicted", "dispatch"),
    TablePoint("figure 5", "chained", "predicted", "dispatch"),
    TablePoint("figure 5", "chained over OpByOp, 2048 cores", "relation", "dispatch"),
    TablePoint("figure 6", "16 hosts", "fitted", "dispatch"),
    TablePoint("figure 6", "512 hosts", "fitted", "dispatch"),
    TablePoint("figure 7", "parallel over sequential, 128 stages", "relation", "dispatch"),
    TablePoint("figure 7", "a computation in parallel, 128 stages over 1", "relation", "dispatch"),
    TablePoint("figure 7", "a computation in sequence, 128 stages over 1", "relation", "dispatch"),
    TablePoint("figure 7", "programs in parallel, 32 long stages over 1", "relation", "dispatch"),
    TablePoint("figure 7", "programs in sequence, 32 long stages over 1", "relation", "dispatch"),
    *(TablePoint("figure 8", name, "relation", "dispatch") for name in ("0.04 ms", "0.33 ms", "1.04 ms", "2.4 ms")),
    TablePoint("figure 9", "1:1:1:1", "by construction"),
    TablePoint("figure 9", "1:2:4:8", "by construction"),
    TablePoint("figure 10", "four islands over one", "predicted", "work"),
    TablePoint("figure 11", "1 client", "relation", "dispatch"),
    *(TablePoint("figure 11", f"{count} clients", "predicted", "dispatch") for count in (4, 8, 16)),
    *(TablePoint("figure 12", f"{model}, {how}", "inverse") for model in ("64B", "136B")
      for how in ("not hidden, 25 GB/s", "hidden, 25 GB/s", "hidden, 12.5 GB/s")),
    *(TablePoint("figure 12, share", model, "predicted", "work") for model in ("64B", "136B")),
    *_table_2(FITS[1]),
    *_table_2(FITS[2]),
)  # fmt: skip
"""All points of the table, in its order."""
