"""Decides which launches may take over the memory of what they read: by the memory, not by the place.

XLA may write a launch's outputs into the memory of a donated input. A value that moves to another place on the same
devices may be the same memory there (JAX hands over the buffers that lie where they are wanted), so all slots of one
memory are looked at together: only the last launch that reads any of them may take it over.
"""

from __future__ import annotations

from collections.abc import Iterable

from pathways_nb.plan.plan import Plan, Step
from pathways_nb.program.program_tracer import Traced


class Donations:
    """What the launches of one plan take over.

    Args:
        traced: the program's trace.
        plan: its plan.
    """

    def __init__(self, traced: Traced, plan: Plan):
        self.traced, self.plan = traced, plan
        self._arguments = set(traced.arguments)
        self._results = set(plan.results)
        # An argument that several places read is given up all the same, but its memory is nobody's to take over.
        leaves = [plan.leaves[step.argument] for step in plan.steps if step.kind == "bring"]
        self._donated_values = {traced.arguments[i] for i in traced.donated if leaves.count(i) == 1}
        self._alike = _same_memory(plan)
        self.slots: set[int] = set()
        """Slots whose memory some launch takes over."""
        self._by: dict[int, tuple[int, ...]] = {}
        """The slots that each launch takes over."""

    def take_over(self, index: int, step: Step) -> tuple[int, ...]:
        """Return the positions of a launch's inputs whose memory it may take over, and take note of them.

        They are donated or intermediate values, and nothing reads their memory later.
        """
        pairs = (
            pair for item in self.traced.codes[step.node].computations
            for pair in zip(item.inputs, item.donated, strict=True)
        )  # fmt: skip
        given_up = {value for value, donated in pairs if donated}
        found = []
        for position, slot in enumerate(step.inputs):
            value = self.plan.slots[slot].value
            # An argument belongs to the caller: a computation may take over only arguments that the program donates as
            # well.
            allowed = value in self._donated_values or (value in given_up and value not in self._arguments)
            if allowed and self._is_last(index, step, self._alike.get(slot, (slot,))):
                found.append(position)
                self.slots.update(self._alike.get(slot, (slot,)))
        self._by[index] = tuple(step.inputs[position] for position in found)
        return tuple(found)

    def _is_last(self, index: int, step: Step, slots: Iterable[int]) -> bool:
        """Return whether a launch is the last that reads any of these slots, in the one order that orders them all.

        Other islands and hosts read at their own pace.
        """
        steps, reads = self.plan.steps, self.plan.reads
        # A result outlives the run. A reader on another island or host may still be reading when this launch begins.
        return self._results.isdisjoint(slots) and all(
            read <= index and steps[read].reader == step.reader for slot in slots for read in reads.get(slot, ())
        )

    def of_arguments(self, index: int) -> list[int]:
        """Return the slots that a launch takes over from the program's arguments."""
        return [slot for slot in self._by.get(index, ()) if self.plan.slots[slot].value in self._arguments]


def _same_memory(plan: Plan) -> dict[int, list[int]]:
    """Return the slots that may be the same memory, by each of them: a moved value and its source on the same devices.

    Places that share some devices only have copies of their own, see ``transfers``.
    """
    found: dict[int, list[int]] = {}
    for step in plan.steps:
        if step.kind == "move" and not step.on_host:
            (source,), (target,) = step.inputs, step.outputs
            # JAX may hand over the same buffers where they lie on the wanted devices already.
            if plan.placements[plan.slots[source].place] == plan.placements[step.place]:
                group = found.setdefault(source, [source])
                group.append(target)
                found[target] = group
    return found
