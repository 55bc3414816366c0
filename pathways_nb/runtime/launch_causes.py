"""Why a launch begins: what the controller was told when it decided so, and what an island waited for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from pathways_nb.controller.events_and_instructions import Completed, Event, Launch, Submitted, Waited
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.runtime.run_state import RunState, is_computed
from pathways_nb.timing.waits import CALL, DATA, MEMORY, MESSAGE, TURN
from pathways_nb.trace.rows import BY, Cause, Label, label_of

_CALLED, _ITS_TURN = Cause(CALL), Cause(TURN)


class LaunchCauses:
    """Tells the cause of each launch; used by the thread in which the core decides.

    Args:
        runs: those under way, by serial number.
        machine: the core, which decides.
    """

    def __init__(self, runs: Mapping[int, RunState], machine: StateMachine):
        self._runs, self._machine = runs, machine
        self._for_memory: set[int] = set()
        """Runs that waited for memory and have not been launched since."""
        self._last: tuple[Event | None, Label | None] = None, None
        """An event that ended a run, and the label of what ended then."""

    def waited(self, instruction: Waited) -> None:
        """Note why a run was held back."""
        if "memory" in instruction.reason:
            self._for_memory.add(instruction.run)

    def finished(self, run: RunState, event: Event | None) -> None:
        """Note a run that ends by an event, before it is forgotten."""
        self._for_memory.discard(run.serial)
        if isinstance(event, Completed) and event.run == run.serial:
            self._last = event, self._label(run, event)

    def of(self, launch: Launch, event: Event | None) -> Cause:
        """Return why a launch is sent while an event is handled."""
        why = TURN
        if launch.run in self._for_memory:
            self._for_memory.discard(launch.run)
            why = MEMORY
        match event:
            case Submitted(run) if run == launch.run:
                return _CALLED
            case Completed(run):
                known = self._runs.get(run)
                label = self._last[1] if event is self._last[0] or known is None else self._label(known, event)
                own = run == launch.run and self._machine.dispatch == "sequential"
                return Cause(DATA if own else why, label, run)
        return _ITS_TURN if why == TURN else Cause(why)

    def _label(self, run: RunState, event: Completed) -> Label | None:
        """Return the label of the last computation of a range, mostly what ended last; ``None`` if the run failed."""
        if run.errors:  # which of its steps were skipped is not known here
            return None
        plan = run.compiled_plan.plan
        for step in reversed(plan.orders[event.island][event.start : event.stop]):
            if plan.steps[step].kind in ("launch", "host"):
                return run.label(step)
        return None


def enqueue_label(run: RunState, island: int) -> Label:
    """Return the label of the dispatching of a run's steps on an island."""
    return label_of("enqueue", run.compiled_plan.name, run.compiled_plan.name, run.client, island=island)


def brought_by(run: RunState, step: int, island: int) -> Cause:
    """Return what made the inputs of a step exist: a transfer to its island, or the dispatching of their producers.

    A step mostly waits for a move on its own island, which in turn waits until what it moves is launched. Where the
    sending of a move took until it was over, that was waited for.
    """
    plan = run.compiled_plan.plan
    over = [
        p for p in plan.steps[step].producers if p in run.late and plan.steps[p].kind == "move" and _is_over(run, p)
    ]
    if len(over) == 1:
        return Cause(DATA, run.own(run.label(over[0])), run.serial)
    makers, pending = set[tuple[RunState, int]](), [(run, step)]
    while pending:
        maker, at = pending.pop()
        for source, number in _producers(maker, at):
            there = source.compiled_plan.plan
            if there.placements[there.steps[number].place].island != island:
                makers.add((source, number))
            elif there.steps[number].kind in ("move", "bring"):
                pending.append((source, number))
    if len(makers) != 1:  # two, or none that is known: a message, and no more
        return BY[MESSAGE]
    ((maker, at),) = makers
    plan = maker.compiled_plan.plan
    return Cause(MESSAGE, enqueue_label(maker, plan.placements[plan.steps[at].place].island), maker.serial)


def _is_over(run: RunState, step: int) -> bool:
    """Return whether what a step makes is computed by now."""
    return all(is_computed(run.slots[slot]) for slot in run.compiled_plan.plan.steps[step].outputs)


def _producers(run: RunState, step: int) -> Iterator[tuple[RunState, int]]:
    """Yield the steps that make what a step reads, each with its run: a step of a run before makes an argument."""
    made, arguments = run.compiled_plan.plan.steps[step], run.arguments  # dropped when the run ends
    yield from ((run, producer) for producer in made.producers)
    if made.argument >= 0 and arguments and (maker := arguments[made.argument].run) is not None:
        yield maker, arguments[made.argument].step
