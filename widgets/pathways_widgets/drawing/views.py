"""What a view is and what it draws: the contract between a run and its pictures.

A view has a ``root`` (a Bokeh figure) and turns one moment of a run into columns. It knows neither kernel nor browser,
so it is tested by reading its columns, and a still picture draws the same columns. What changes with the data but is no
column (heights, ranges, titles) is in ``properties``, by model name, and is set on the models that the browser has.
Times are in seconds, sizes in bytes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from bokeh.models import ColumnDataSource, LayoutDOM

from pathways_nb.cost.model import CostModel
from pathways_nb.plan.graph import Graph
from pathways_nb.trace.launch_ops import Ops
from pathways_nb.trace.op_graph import OpGraph
from pathways_nb.trace.record import Events
from pathways_widgets.drawing import style
from pathways_widgets.drawing.picked_rows import Picked
from pathways_widgets.drawing.scene import Shape

Columns = dict[str, Any]
"""Equally long columns: NumPy arrays, ``Words``, or lists of text."""


SIDES, ENDS = ("left", "right", "top", "bottom"), ("x0", "y0", "x1", "y1")
"""Names of the columns of a table of boxes, and of a table of lines."""


class Words(Sequence[str]):
    """A column of text with few different words: the list of words, and for each row a position in it.

    A column of a million rows is then sent as numbers. Comparing or reading it works as with a list.

    Args:
        words: the different words.
        numbers: for each row the position of its word.
    """

    def __init__(self, words: Sequence[str], numbers: np.ndarray):
        # (rows,) positions in ``words``.
        self.words, self.numbers = words, numbers

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, row: Any) -> Any:
        return [self.words[i] for i in self.numbers[row]] if isinstance(row, slice) else self.words[self.numbers[row]]

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    __hash__ = None  # type: ignore[assignment]


Window = tuple[float, float]
"""The visible part of the time axis, in seconds since the start of the run."""

FULL_WIDTH = 900.0
"""Width in screen pixels to which text and boxes are fitted."""


class DrawnProgram(Protocol):
    """A program as a picture needs it: its graph, and what the controller decided about it."""

    @property
    def graph(self) -> Graph:
        """The sharded dataflow graph."""

    @property
    def where(self) -> Mapping[int, str]:
        """Serial of a virtual slice -> ``"island 0, dev 0–3"``."""

    @property
    def routes(self) -> Mapping[tuple[int, int], str]:
        """(source node, target node) -> ``"local"``, ``"ICI"``, ``"DCN"`` or ``"host"``."""

    @property
    def layouts(self) -> Mapping[tuple[int, int], str]:
        """(source node, target node) -> how the values between them are laid out; nothing where that is not known."""

    @property
    def runs(self) -> int:
        """How many times it ran."""

    @property
    def needed(self) -> Mapping[int, tuple[str, int]]:
        """Node for whose value Python waited -> the first line that waited, and in how many runs one did."""


class RunLike(Protocol):
    """A run that can be drawn while it is in progress."""

    @property
    def name(self) -> str:
        """The user's name for it."""

    @property
    def islands(self) -> tuple[int, ...]:
        """Number of devices of each island."""

    @property
    def island_names(self) -> tuple[str, ...]:
        """The names of its islands; empty if they have numbers only."""

    @property
    def hbm(self) -> tuple[int, ...]:
        """Bytes of memory of each device, for each island; 0 where unknown."""

    @property
    def programs(self) -> Sequence[DrawnProgram]:
        """Its programs, in the order of their first run."""

    @property
    def finished(self) -> bool:
        """Whether it has ended."""

    @property
    def events(self) -> Events:
        """The events so far, in the order of their recording; times in seconds since the run began."""

    @property
    def last_time(self) -> Events | None:
        """What the same cell did when it was run last; None if that is not known, or not to be drawn."""

    @property
    def link_model(self) -> CostModel | None:
        """The calibrated model of its real devices, for the bandwidth of transfers; None without one."""

    @property
    def ops(self) -> Ops:
        """The ops inside its launches; empty if none were seen."""

    @property
    def op_graph(self) -> OpGraph:
        """The graph of its ops, of an adopted step; empty for other runs."""

    def headline(self) -> str:
        """Return the sentence above the figures: what matters; empty for none."""

    def summary_line(self) -> str:
        """Return the numbers under the figures, in one line."""


@dataclass(frozen=True)
class Drawn:
    """A program as it was at one time."""

    graph: Graph
    where: Mapping[int, str]
    routes: Mapping[tuple[int, int], str]
    layouts: Mapping[tuple[int, int], str]
    runs: int
    needed: Mapping[int, tuple[str, int]]


@dataclass(frozen=True)
class Moment:
    """A run as it was at one time; itself a run that can be drawn.

    All views of one picture draw the same moment, so that they agree while the run goes on.
    """

    name: str
    islands: tuple[int, ...]
    island_names: tuple[str, ...]
    hbm: tuple[int, ...]
    programs: tuple[DrawnProgram, ...]
    finished: bool
    events: Events
    summary: str
    sentence: str = ""
    ops: Ops = field(default_factory=Ops)
    op_graph: OpGraph = field(default_factory=OpGraph)
    last_time: Events | None = None
    link_model: CostModel | None = None

    @classmethod
    def of(cls, run: RunLike) -> Moment:
        """Return the present state of ``run``."""
        # Read first: if the run ends meanwhile, this moment counts as unfinished and another one is drawn.
        finished = run.finished
        programs = tuple(
            Drawn(one.graph, one.where, one.routes, one.layouts, one.runs, dict(one.needed)) for one in run.programs
        )
        where = run.islands, run.island_names, run.hbm
        said = run.summary_line(), run.headline()
        # What a run has done so far is no more than a part of what it did the last time.
        last = run.last_time if finished else None
        return cls(run.name, *where, programs, finished, run.events, *said, run.ops, run.op_graph, last, run.link_model)

    def headline(self) -> str:
        """Return the sentence above the figures."""
        return self.sentence

    def summary_line(self) -> str:
        """Return the summary of this moment."""
        return self.summary

    @property
    def version(self) -> tuple[object, ...]:
        """A value that changes whenever there is something new to draw."""
        # Lengths and counts only: comparing a million events would take longer than drawing them.
        runs = tuple((id(program.graph), program.runs, *program.needed.values()) for program in self.programs)
        return len(self.events), len(self.ops), runs, self.islands, self.finished, self.summary, self.sentence


class Drawing(ABC):
    """A Bokeh figure and the columns that it shows.

    Args:
        columns: names of the columns of each source.
        roles: colours of the theme; see ``roles``.
    """

    def __init__(self, columns: Mapping[str, Sequence[str]], roles: dict[str, dict[str, str]]):
        self._columns = columns
        self.style = style.current()
        self.roles = roles
        """Model name -> property -> role in the theme."""
        self.sources: dict[str, Columns] = {name: {column: [] for column in columns[name]} for name in columns}
        """The columns last returned by ``update``."""
        self.properties: dict[str, dict[str, Any]] = {}
        """Model name -> properties that follow the data: heights, ranges, titles."""

    @cached_property
    def tables(self) -> dict[str, ColumnDataSource]:
        """The Bokeh sources of the glyphs, by the names of ``sources``; made when first needed, as ``root`` is."""
        return {name: empty_source(name, columns) for name, columns in self._columns.items()}

    @cached_property
    @abstractmethod
    def root(self) -> LayoutDOM:
        """The Bokeh figure, or several; made when first needed, because still pictures have none."""


class View(Drawing):
    """A small object that draws one aspect of a run."""

    window: Window | None = None
    """The part of the time axis that its still picture shows; ``None`` for that on which a picture opens."""
    picked: Picked = Picked()
    """What does not fade in its still picture."""
    brushed: Window | None = None
    """The part of the time axis that is shaded in its still picture, since its totals are told."""

    @abstractmethod
    def update(self, run: RunLike, window: Window | None = None) -> dict[str, Columns]:
        """Return the columns of every source.

        Args:
            run: what to draw.
            window: the visible part of the time axis; ``None`` for all of it.
        """

    def still(self, run: RunLike, width: float, top: float) -> tuple[list[Shape], float]:
        """Return the same as shapes, for files and for viewers without scripts, and their height in pixels.

        A view that does not say otherwise has none.

        Args:
            run: what to draw.
            width: width of the page in pixels.
            top: pixels above the picture.
        """
        return [], 0.0


def node_id(program: str, node: int) -> str:
    """Return the id that links a node's box in the graph with its bars in the timeline; empty if there is no node."""
    # A merged box has several ids, separated by spaces, so an id has none.
    return f"{program.replace(' ', '_')}#{node}" if node >= 0 else ""


CLIPPED = ".bk-Canvas { clip-path: inset(-2000px -2000px -2000px 1px); }"
"""Hides the leftmost pixels of a canvas: Bokeh leaves a trace of its first, narrow paint there."""


def empty_source(name: str, columns: Sequence[str]) -> ColumnDataSource:
    """Return a named source without rows, to which glyphs can refer."""
    return ColumnDataSource({column: [] for column in columns}, name=name)
