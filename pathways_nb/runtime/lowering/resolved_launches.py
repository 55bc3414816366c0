"""What the launches of a plan need, looked up once: a dispatcher carries them out by positions alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from pathways_nb.trace.rows import Label

if TYPE_CHECKING:
    from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan


class ResolvedLaunch(NamedTuple):
    """A launch.

    Args:
        step: its number in the plan.
        call: what it calls.
        inputs: slots that it reads.
        outputs: slots that it fills.
        witness: the output whose readiness shows that it has ended.
        is_certain: whether its inputs exist when it is its turn, unless the run fails: launches before it make them.
        tells: whether others hear of its outputs: users, other islands, other hosts.
        is_synchronous: whether its call returns only when it has ended, as calls of host callbacks do.
        is_awaited: whether another island or the user waits for its end.
        frees: slots that nobody reads after it.
        shares: slots that it reads last on its island, and that others read, too.
        label: of its event.
        devices: its devices on the island.
        width: their number.
        waits_for: producers whose end does not follow from the devices being free.
        reader: the first launch on the island that reads its outputs; -1 if there is none.
    """

    step: int
    call: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    witness: int
    is_certain: bool
    tells: bool
    is_synchronous: bool
    is_awaited: bool
    frees: tuple[int, ...]
    shares: tuple[int, ...]
    label: Label
    devices: slice
    width: int
    waits_for: tuple[int, ...]
    reader: int


def resolved_launches(compiled_plan: CompiledPlan, island: int) -> Mapping[int, ResolvedLaunch]:
    """Return the launches of a plan on an island, by step."""
    plan, actions = compiled_plan.plan, compiled_plan.actions
    told, made = set(plan.results), dict[int, ResolvedLaunch]()
    for number in plan.orders.get(island, ()):
        step, action = plan.steps[number], actions[number]
        if step.kind != "launch" or action.call is None:
            continue
        producers = [plan.steps[producer] for producer in step.producers]
        made[number] = ResolvedLaunch(
            number,
            action.call,
            tuple(step.inputs),
            tuple(step.outputs),
            action.witness,
            all(one.kind == "launch" and one.island == island for one in producers),
            number in compiled_plan.awaited or not told.isdisjoint(step.outputs),
            action.calls_back,
            number in compiled_plan.awaited,
            tuple(slot for slot in step.last if slot not in plan.readers),
            tuple(slot for slot in step.last if slot in plan.readers),
            action.label,
            slice(action.label.device, action.label.device + action.label.devices),
            action.label.devices,
            action.waits_for,
            action.reader,
        )
    return made
