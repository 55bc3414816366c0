"""From a flat list of items to the sharded dataflow graph: the place of each item, and the operations in each node.

A computation is a node at its declared place. An ordinary operation has no declared place: it runs at the place that
holds most bytes of its operands, so that the fewest bytes move. Operations of one place are merged into few nodes,
because each node costs a launch; an operation joins the open group of its place only if none of its operands is made
after that group, so merging never makes a node wait for more than it needs. Operations that depend on no place (a step
counter, a learning-rate schedule) are repeated at each place that reads them instead of being transferred. No device is
chosen in this module; ``fuse.py`` merges nodes further, on request.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from pathways_nb.plan.graph import Graph, Node, Value
from pathways_nb.plan.plan import SMALL
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program.action_marks import numbered
from pathways_nb.program.declared_cost import LaunchPlan
from pathways_nb.program.exchange_groups import check_place, grouped, sum_of
from pathways_nb.program.fuse import fuse
from pathways_nb.program.host_work import HostWork
from pathways_nb.program.items import Const, FlatProgram, Group, Operand, ProgramItem, constant


@dataclass(frozen=True, eq=False)
class Code:
    """What a node computes: its items in order, the values it reads from outside and those it makes for others."""

    name: str
    items: tuple[ProgramItem, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]

    @property
    def computations(self) -> tuple[ProgramItem, ...]:
        """The items with declared shardings: none, one, or several that were fused."""
        return tuple(item for item in self.items if item.place is not None)

    def options_on(self, platform: str) -> dict[str, Any]:
        """Return the options of XLA that its computations declare for a platform; those of a node are equal."""
        found = {}
        for item in self.items:
            for name, value in item.compiler_options.items():
                only, _, option = name.rpartition(":")
                if only in ("", platform):
                    found[option] = value
        return found

    @property
    def seconds(self) -> float | None:
        """The declared duration in seconds; ``None`` unless all items declare theirs."""
        declared = [item.cost for item in self.items if isinstance(item.cost, float)]
        return sum(declared) if len(declared) == len(self.items) else None

    @property
    def launch_plans(self) -> tuple[LaunchPlan, ...]:
        """What its computations know of their launches."""
        return tuple(item.cost for item in self.items if isinstance(item.cost, LaunchPlan))

    @property
    def host(self) -> HostWork | None:
        """The Python function that it runs on a host; ``None`` of what runs on devices."""
        return self.items[0].host

    @property
    def kind(self) -> str:
        """The kind of its events: ``"host"``, ``"collective"`` if devices only exchange values, else ``"compute"``."""
        if self.host is not None:
            return "host"
        return "collective" if len(self.items) == 1 and self.items[0].is_collective else "compute"


class Builder:
    """The state of placing and grouping the items of one flat program; ``build`` runs it.

    Args:
        flat: the program; repeated operations add values to it.
        places: the virtual slices by serial; at least one.
        homes: the place of arguments, by value. An argument without one has no influence on where operations run.
    """

    def __init__(self, flat: FlatProgram, places: Mapping[int, VirtualSlice], homes: Mapping[int, int]):
        self.flat, self.places = flat, places
        self.order = {item: index for index, item in enumerate(flat.ops)}
        self.groups: list[Group] = []
        self.made_in: dict[int, int] = {}
        """The position of the group that makes each value; arguments are absent."""
        self.open: dict[int, int] = {}
        """By place, the group that ordinary operations may still join."""
        self.free: dict[int, ProgramItem] = {}
        """The item that makes each value that depends on no place."""
        self.copies: dict[tuple[int, int], int] = {}
        """The number that such a value has at a place where its item was repeated, by value and place."""
        self.home: dict[int, int] = dict(homes)
        """The place of each value that has one."""
        self.sums: list[ProgramItem] = []
        """The sums of an exchange that are not in groups yet."""
        self.exchanged: dict[tuple[int, ...], None] = {}
        """The values that an exchange adds, leaf by leaf."""
        self.results: tuple[int, ...] = ()
        """The placed values that the program returns."""
        self.kept: list[tuple[int, int]] = []
        """Small results that another place computes, too: the position of the result, and the value at that place."""

    def build(self) -> list[Group]:
        """Return the groups of the program in order, after placing every item; sets ``results`` and ``kept``."""
        # Where nothing else says where: effects without operands (a print), and results that depend on no place.
        default = next((item.place for item in self.flat.ops if item.place is not None), min(self.places))
        assert default is not None
        for item in self.flat.ops:
            # ``pw.all_reduce`` makes the sums of one exchange one after another, so any other item shows that they are
            # complete. Only then is their order known.
            if self.sums and (item.exchange_sum is None or item.exchange_sum.exchange != sum_of(self.sums[0]).exchange):
                self._end_exchange()
            if item.exchange_sum is not None:
                self.sums.append(item)
                continue
            place = item.place if item.place is not None else self._place_by_operands(item)
            if place is None and item.has_effects:
                place = default
            if place is None:
                # In no group yet: each place that reads it repeats it, so a step counter never crosses islands.
                self.free.update(dict.fromkeys(item.outputs, item))
            elif item.place is not None:
                self._new_group(place, self._bring(item, place))
            else:
                self._join(place, self._bring(item, place))
        self._end_exchange()
        self.results = tuple(self._result(operand, default) for operand in self.flat.outputs)
        self.kept += self._computed_elsewhere(self.flat.outputs, default)
        return self.groups

    def _end_exchange(self) -> None:
        """Add the collected sums of an exchange as groups."""
        for item in self.sums:
            check_place(item, self.home, self.places, self.flat.avals)
            self.exchanged[tuple(item.values())] = None
        for items in list(grouped(self.sums, self.made_in, self.flat.avals)) if self.sums else ():
            place = items[0].place
            assert place is not None
            self._new_group(place, *(self._bring(item, place) for item in items))
        self.sums = []

    def _computed_elsewhere(self, operands: Sequence[Operand], default: int) -> Iterator[tuple[int, int]]:
        """Yield the small results that another place can compute as well, each with its value at that place.

        A step counter is read at several places. If each of them computes its next value and keeps it, the next call
        need not send it.
        """
        for place in (place for place in self.places if place != default and place in self.open):
            read = {v for group in self.groups if group.place == place for item in group.items for v in item.values()}
            for position, operand in enumerate(operands):
                if not isinstance(operand, Const) and operand in self.free and self._is_at_hand(operand, place, read):
                    yield position, self._copy(operand, place)

    def _is_at_hand(self, value: int, place: int, read: set[int]) -> bool:
        """Return whether a value is small, and a place has made it already or reads all that it is computed from."""
        # Nothing is sent for it: its other operands lie at the place already, because something there reads them.
        missing = self._missing(value, place)
        made = {output for item in missing for output in item.outputs}
        needed = {v for item in missing for v in item.values() if (v, place) not in self.copies} - made
        small = all(self.flat.avals[v].bytes <= SMALL for v in (value, *made))
        return small and needed <= read and (bool(needed) or not missing)

    def _place_by_operands(self, item: ProgramItem) -> int | None:
        """Return the place that holds most bytes of an item's operands; ``None`` if no operand has a place."""
        weight: Counter[int] = Counter()
        for value in item.values():
            if value in self.home:
                weight[self.home[value]] += self.flat.avals[value].bytes
        # Of places with equal bytes the first operand's, so that equal programs get equal graphs.
        return weight.most_common(1)[0][0] if weight else None

    def _bring(self, item: ProgramItem, place: int) -> ProgramItem:
        """Return an item with every operand that depends on no place replaced by its copy at ``place``."""
        inputs = (x if isinstance(x, Const) else self._copy(x, place) for x in item.inputs)
        return replace(item, inputs=tuple(inputs))

    def _copy(self, value: int, place: int) -> int:
        """Return the number of a value at a place, after repeating the operations there that it still needs.

        A value with a place, or an argument, keeps its number.
        """
        for item in self._missing(value, place):
            fresh = [self.flat.new(self.flat.avals[output]) for output in item.outputs]
            self.copies.update({(old, place): new for old, new in zip(item.outputs, fresh, strict=True)})
            inputs = (x if isinstance(x, Const) else self.copies.get((x, place), x) for x in item.inputs)
            self._join(place, replace(item, inputs=tuple(inputs), outputs=tuple(fresh)))
        return self.copies.get((value, place), value)

    def _missing(self, value: int, place: int) -> list[ProgramItem]:
        """Return the operations behind a value that depend on no place and must still be repeated at ``place``."""
        found: dict[int, ProgramItem] = {}
        pending = [value]
        while pending:
            item = self.free.get(current := pending.pop())
            if item is not None and (current, place) not in self.copies and self.order[item] not in found:
                found[self.order[item]] = item
                pending += item.values()
        return [found[index] for index in sorted(found)]

    def _result(self, operand: Any, default: int) -> int:
        """Return the placed value of a result; a constant or a value without a place is made at ``default``."""
        if isinstance(operand, Const):
            aval = constant(operand.value, 0).jaxpr.jaxpr.outvars[0].aval
            output = self.flat.new(aval)
            self._join(default, constant(operand.value, output))
            return output
        return self._copy(operand, default)

    def _new_group(self, place: int, *items: ProgramItem) -> None:
        """Add computations as a group of their own, which no operation joins."""
        self.groups.append(Group(place))
        for item in items:
            self._add(len(self.groups) - 1, item)

    def _join(self, place: int, item: ProgramItem) -> None:
        """Add an ordinary operation to the open group of its place, or open a new group for it."""
        group = self.open.get(place)
        # An operand that is made after the open group would hold up all that waits for that group.
        if group is None or any(self.made_in.get(value, -1) > group for value in item.values()):
            self.groups.append(Group(place))
            group = self.open[place] = len(self.groups) - 1
        self._add(group, item)

    def _add(self, group: int, item: ProgramItem) -> None:
        self.groups[group].items.append(item)
        for value in item.outputs:
            self.made_in[value] = group
            self.home[value] = self.groups[group].place


def build(
    name: str,
    flat: FlatProgram,
    places: Mapping[int, VirtualSlice],
    parameters: list[str],
    fused: bool = False,
    homes: Mapping[int, int] = {},
) -> tuple[Graph, dict[int, Code]]:
    """Return the graph of a flat program, and the code of each node that runs.

    Args:
        name: the program's name.
        flat: its items.
        places: the virtual slices by serial; at least one.
        parameters: for each argument leaf, the name of its parameter.
        fused: whether groups that follow each other at one place become one node where no other place waits longer.
        homes: the place of arguments, by value, for arguments whose operations are to run where the argument is.

    Returns:
        The graph, and the code of computations and operations by node id; arguments and the result have none.
    """
    builder = Builder(flat, places, homes)
    groups = builder.build()
    groups = fuse(groups) if fused else groups
    kept = {*builder.results, *(value for _, value in builder.kept)}
    # How often the whole program reads a value: what its own group reads each time need not leave the node.
    used: Counter[Any] = Counter(builder.results)
    for group in groups:
        used.update(value for item in group.items for value in item.values())
    nodes: list[Node] = []
    # One node for each parameter, not for each leaf: a model has hundreds of arrays.
    leaves: dict[str, list[int]] = {}
    for value, parameter in zip(flat.inputs, parameters, strict=True):
        leaves.setdefault(parameter, []).append(value)
    for parameter, values_of in leaves.items():
        nodes.append(Node(len(nodes), "argument", parameter, None, (), tuple(values_of)))
    codes = {}
    for group in groups:
        code = _code(group, used, kept)
        kind = "host" if group.host else "computation" if group.is_computation else "operations"
        line = next((item.line for item in group.items if item.line), "")
        parts = tuple(item.title for item in group.items)
        place = places[group.place]
        shown = numbered(code.name, group.action)
        node = Node(len(nodes), kind, shown, place, code.inputs, code.outputs, line, parts, code.seconds, group.action)  # type: ignore[arg-type]
        nodes.append(node)
        codes[nodes[-1].id] = code
    nodes.append(Node(len(nodes), "result", "result", None, builder.results, ()))
    values = tuple(Value(i, aval.shape, str(aval.dtype), aval.bytes) for i, aval in enumerate(flat.avals))
    return Graph(name, tuple(nodes), values, tuple(builder.kept), tuple(builder.exchanged)), codes


def _code(group: Group, used: Counter[int], results: set[Any]) -> Code:
    """Return the code of a group.

    Args:
        group: the items of one node.
        used: how often each value is read in the whole program, results included.
        results: the values that the program returns or keeps.
    """
    made = {value for item in group.items for value in item.outputs}
    here = Counter(value for item in group.items for value in item.values())
    inputs = tuple(dict.fromkeys(v for item in group.items for v in item.values() if v not in made))
    if group.is_computation and len(group.items) == 1:
        # All outputs, read or not: then equal calls have equal code and share one executable.
        outputs = group.items[0].outputs
    else:
        # What nobody else reads is no output: XLA can then fuse it away, and no memory is held for it.
        outputs = tuple(v for item in group.items for v in item.outputs if used[v] > here[v] or v in results)
    return Code(group.name, tuple(group.items), inputs, outputs)
