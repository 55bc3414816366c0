"""The steps of a compiled plan: what each calls or where it sends, and for each island, all that a launch needs there.

What is the same for every call of a plan is worked out here once, so that a range of an island's order is carried out
as a loop over what is resolved.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Any, NamedTuple, Self

import jax

from pathways_nb.cost.launch.opened_launch import OpenedLaunch
from pathways_nb.cost.model import NodeCost
from pathways_nb.plan.plan import Plan, Step
from pathways_nb.program.host_work import Seconds
from pathways_nb.runtime.lowering.host_steps import HostCall
from pathways_nb.trace.rows import Label


@dataclass(frozen=True, slots=True, eq=False)
class CompiledStep:
    """A step with what it calls (in the simulator: what it costs) or where it sends, and its label in the record."""

    step: Step
    label: Label
    call: jax.stages.Compiled | None = None
    may_block: bool = False
    """Whether its call may take long: if it calls functions on the host, or is computed in the call."""
    cost: NodeCost | None = None
    opened: OpenedLaunch | None = None
    """In the simulator, its operations, where the compiler of the simulated chip has compiled it."""
    target: Any = None
    waits_for: tuple[int, ...] = ()
    """Producers whose end does not follow from the devices being free: transfers, and launches on other devices."""
    witness: int = 0
    """The output whose readiness shows that the step has ended."""
    reader: int = -1
    """The first launch on the same island that reads its outputs; -1 if there is none."""
    host: HostCall | None = None
    """Of a node on a host: runs it."""
    seconds: Seconds = None
    """Of a node on a host: how long it is declared to take."""


@dataclass(frozen=True, slots=True, eq=False)
class ResolvedLaunch:
    """A launch.

    Args:
        step: its number in the plan.
        call: what it calls.
        read: returns its inputs, given the slots of a run.
        outputs: slots that it fills.
        output: the slot, if it is the only one; else -1.
        witness: the output whose readiness shows that it has ended.
        is_certain: whether its inputs exist when it is its turn, unless the run fails: launches before it make them.
        tells: whether others hear of its outputs: users, other islands, other hosts.
        may_block: whether its call may return only when it has ended, as calls of host callbacks do.
        is_urgent: whether its end is recorded at once: somebody waits for it, it may have been seen just before the end
            of a transfer that it waited for, or what tells its end takes much memory.
        frees: slots that nobody reads after it.
        shares: slots that it reads last on its island, and that others read, too.
        label: of its event.
        devices: its devices on the island; the same object for all launches of the plan on the same ones.
        width: their number.
        waits_for: producers whose end does not follow from the devices being free.
        reader: the first launch on the island that reads its outputs; -1 if there is none.
    """

    step: int
    call: Callable[..., Any]
    read: Callable[[Sequence[Any]], Sequence[Any]]
    outputs: tuple[int, ...]
    output: int
    witness: int
    is_certain: bool
    tells: bool
    may_block: bool
    is_urgent: bool
    frees: tuple[int, ...]
    shares: tuple[int, ...]
    label: Label
    devices: slice
    width: int
    waits_for: tuple[int, ...]
    reader: int


class Stretch(NamedTuple):
    """A part of a range: other steps, and the launches behind them."""

    others: list[int]
    launches: list[ResolvedLaunch]


@dataclass(eq=False)
class IslandSteps:
    """A plan's steps on one island.

    Args:
        order: the steps, in the order in which they go out.
        launches: those that may go out without a closer look, by step.
        brings: those that bring arguments.
    """

    order: Sequence[int]
    launches: Mapping[int, ResolvedLaunch]
    brings: frozenset[int] = frozenset()
    _stretches: dict[tuple[int, int, bool], Sequence[Stretch]] = field(default_factory=dict, init=False)

    @classmethod
    def of(
        cls, plan: Plan, actions: Sequence[CompiledStep], awaited: Collection[int], large: Collection[int], island: int
    ) -> Self:
        """Return the steps of a plan on an island.

        Args:
            plan: the plan.
            actions: its compiled steps.
            awaited: steps whose outputs another island or the user waits for.
            large: slots that are freed as soon as possible.
            island: index of the island.
        """
        told, order = set(plan.results), plan.orders.get(island, ())
        where, launches = dict[tuple[int, int], slice](), dict[int, ResolvedLaunch]()
        for number in order:
            step, action = plan.steps[number], actions[number]
            if step.kind != "launch" or action.call is None:
                continue
            producers = [plan.steps[producer] for producer in step.producers]
            first, devices = action.label.device, action.label.devices
            launches[number] = ResolvedLaunch(
                number,
                _without_python(action.call),
                _reading(step.inputs),
                tuple(step.outputs),
                step.outputs[0] if len(step.outputs) == 1 else -1,
                action.witness,
                all(one.kind == "launch" and one.island == island for one in producers),
                number in awaited or not told.isdisjoint(step.outputs),
                action.may_block,
                number in awaited or bool(action.waits_for) or any(slot in large for slot in step.outputs),
                tuple(slot for slot in step.last if slot not in plan.readers),
                tuple(slot for slot in step.last if slot in plan.readers),
                action.label,
                where.setdefault((first, devices), slice(first, first + devices)),
                devices,
                action.waits_for,
                action.reader,
            )
        return cls(order, launches, frozenset(number for number in order if plan.steps[number].kind == "bring"))

    def stretches(self, start: int, stop: int, with_brings: bool = True) -> Sequence[Stretch]:
        """Return the steps from one position of the order to another, with or without those that bring arguments."""
        key = start, stop, with_brings
        if (found := self._stretches.get(key)) is None:
            if len(self._stretches) > len(self.order):  # programs that take turns are cut anywhere
                self._stretches.clear()
            made = [Stretch([], [])]
            for step in self.order[start:stop]:
                launch = self.launches.get(step)
                if launch is not None:
                    made[-1].launches.append(launch)
                elif with_brings or step not in self.brings:
                    if made[-1].launches:
                        made.append(Stretch([], []))
                    made[-1].others.append(step)
            found = self._stretches[key] = tuple(made)
        return found


def _reading(slots: Sequence[int]) -> Callable[[Sequence[Any]], Sequence[Any]]:
    """Return a function that reads slots; in C, since it is called for every launch."""
    if len(slots) > 1:
        return itemgetter(*slots)
    (first,) = slots or (0,)
    return itemgetter(slice(first, first + len(slots)))


def _without_python(call: Any) -> Callable[..., Any]:
    """Return what a compiled node calls in the end: the method in front of it costs a microsecond at each call."""
    if not isinstance(call, jax.stages.Compiled):
        return call
    try:  # private: where it is missing, the call itself does the same
        inner = call._call or call._executable.create_cpp_call(call._params)
    except Exception:
        return call
    return inner or call
