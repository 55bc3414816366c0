"""One run under way: the arrays in its slots, the steps that are done, and the errors.

Dispatchers write slots, watchers mark steps as done, and the user's thread waits. Nothing is decided here.
"""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import repeat
from operator import attrgetter, is_, is_not
from typing import Any

from pathways_nb.errors import CancelledError, LostError, NodeError, PathwaysError
from pathways_nb.plan.call_numbers import call_number
from pathways_nb.plan.plan import Placement
from pathways_nb.program.guarded_callbacks import NOTE
from pathways_nb.runtime.entries import Entry, ResultEntries, at_once
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
from pathways_nb.trace.record import Record
from pathways_nb.trace.rows import Label
from pathways_nb.util.progress import tell_reader
from pathways_nb.util.waiting import Condition

_array_of, _error_of, _moves_of, _is_shared = map(attrgetter, ("array", "error", "moves", "shared"))
asked = itertools.count()
"""Numbers of calls, in the order in which they are made."""


@lru_cache(maxsize=4096)
def _of_client(label: Label, client: str) -> Label:
    return replace(label, client=client)


@dataclass(eq=False, slots=True, weakref_slot=True)
class RunState:
    """One run of a compiled plan.

    Args:
        serial: the run's number.
        compiled_plan: what is carried out.
        arguments: entries of the argument leaves.
        results: entries by slot.
        record: where its events go.
        launched: notified when an array that others wait for exists.
        ended: notified when a result is computed or the run has ended.
    """

    serial: int
    compiled_plan: CompiledPlan
    arguments: Sequence[Entry]
    results: Mapping[int, list[Entry]]
    record: Record
    launched: Condition
    ended: Condition
    client: str = ""
    buffers: Sequence[int] = ()
    """The logical buffers of its results."""
    moved: tuple[int, ...] = ()
    """Positions of its arguments that did not lie at their places; see ``Driver.moved``."""
    unread: set[int] = field(init=False)
    """Steps that are still to bring their argument."""
    thread: int = field(default_factory=threading.get_ident)
    """The thread that called it."""
    asked: int = field(default_factory=asked.__next__)
    """Its number among the calls of all threads and controllers."""
    called: float = field(default_factory=time.perf_counter)
    """When it was called, in seconds of this process."""
    begun: bool = False
    """Whether any launch of it has gone out."""
    siblings: dict[int, RunState] = field(init=False)
    """The runs of its client that have not ended, itself included, by number."""
    slots: list[Any] = field(default_factory=list)
    errors: dict[int, PathwaysError] = field(default_factory=dict)
    """By step, the reason why it has no outputs."""
    done: bytearray = field(init=False)
    ends: dict[int, float] = field(default_factory=dict)
    """When each watched step ended; a transfer starts no earlier than its source ends."""
    stopped: bool = False
    reason: PathwaysError | None = None
    """Why it was stopped, if not by a cancel."""
    finished: bool = False
    remaining_readers: dict[int, set[int]] = field(init=False)
    """By slot that is not dropped by its only reader: the islands, and the late steps (``~step``), still to read it."""
    recorded: dict[int, Label] = field(default_factory=dict)
    """By step, the label of its event, where it is not the plan's with this run's client."""
    late: set[int] = field(default_factory=set)
    """Steps that are carried out after steps behind them."""
    explain: Callable[[Placement, str, BaseException], PathwaysError | None] = lambda *_: None
    """Returns the error of a node that failed since its devices did; see ``DeviceLayer.explain``."""

    @property
    def moved_on(self) -> frozenset[int]:
        """The steps that bring what did not lie at its place."""
        return frozenset(map(self.compiled_plan.brings.__getitem__, self.moved))

    def own(self, label: Label) -> Label:
        """Return a label with this run's client."""
        return _of_client(label, self.client) if self.client else label

    def label(self, step: int) -> Label:
        """Return the label under which a step is recorded."""
        found = self.recorded.get(step)
        return self.own(self.compiled_plan.actions[step].label) if found is None else found

    def __post_init__(self) -> None:
        self.done = bytearray(len(self.compiled_plan.plan.steps))

    def begin(self) -> None:
        """Make room for what its steps make."""
        plan = self.compiled_plan.plan
        self.slots = [None] * len(plan.slots)
        self.unread = set(self.compiled_plan.brings)
        self.remaining_readers = {slot: set(islands) for slot, islands in plan.readers.items()}

    def fill(self, step: int, arrays: Sequence[Any]) -> None:
        """Store the outputs of a launched step, computed or not."""
        compiled_plan = self.compiled_plan
        made, slots = compiled_plan.plan.steps[step], self.slots
        for slot, array in zip(made.outputs, arrays, strict=False):
            slots[slot] = array
        source, span = made.argument, compiled_plan.spans.get(step)
        if span is not None and isinstance(self.results, ResultEntries):
            for entry, array in zip(self.results.entries[span], arrays, strict=False):
                entry.array = array
        elif self.results:
            for slot, array in zip(made.outputs, arrays, strict=False):
                entries = self.results.get(slot, ())
                for entry in entries:
                    entry.array, entry.shared = array, len(entries) > 1 or source >= 0
                if entries and source >= 0:
                    self.arguments[source].shared = True
        if source < 0:
            self.begun = True
        if step in self.compiled_plan.awaited:
            self.launched.notify_all()

    def fail(self, step: int, error: PathwaysError) -> None:
        """Record that a step has no outputs and never will."""
        self.errors.setdefault(step, error)
        self._say_if_unheard(step, error)
        for slot in self.compiled_plan.plan.steps[step].outputs:
            for entry in self.results.get(slot, ()):
                entry.error = entry.error or error
        self.mark_done(step)
        self.launched.notify_all()

    def _say_if_unheard(self, step: int, error: PathwaysError) -> None:
        """Print the error of host work without outputs: no future could raise it."""
        action = self.compiled_plan.actions[step]
        if action.step.kind == "host" and not action.step.outputs and str(error).startswith(f"{action.label.name} of "):
            tell_reader(f"{type(error).__name__}: {error}")

    def mark_done(self, step: int) -> None:
        """Record that a step has ended, well or not."""
        self.done[step] = 1
        if step in self.compiled_plan.awaited:
            self.ended.notify_all()

    def stop(self, reason: PathwaysError | None = None) -> None:
        """Skip the steps that are not launched yet."""
        self.reason = self.reason or reason
        self.stopped = True

    def has_brought(self, step: int) -> None:
        """Record that a step has read the argument that it brings: whoever takes over its memory may wait for that."""
        self.unread.discard(step)
        self.launched.notify_all()

    def has_moved(self, entries: Sequence[Entry]) -> None:
        """Count one pending move of each entry less: whoever takes over its memory may wait for that."""
        if entries:
            for entry in entries:
                entry.has_moved()
            self.launched.notify_all()

    def is_read_by_others(self, step: int) -> bool:
        """Return whether other runs, or other steps of this one, are still to read the argument that a step brings.

        A run counts until it has brought all its arguments: those were made by runs before it, so none of them waits
        for a run that waits for it.
        """
        argument = self.compiled_plan.plan.steps[step].argument
        if self._has_others([self.arguments[argument]]):
            return True
        bringing = self.compiled_plan.bringing.get(argument, ())
        return len(bringing) > 1 and not self.unread.isdisjoint(other for other in bringing if other != step)

    def _has_others(self, entries: Sequence[Entry]) -> bool:
        """Return whether other runs are still to read any of these arguments, or anybody is to send one."""
        readers = [one.readers for one in entries]
        distinct = dict(zip(map(id, readers), readers, strict=True)).values()  # those of one call mostly have the same
        return any(map(_moves_of, entries)) or any(
            unread and unread is not self.unread for group in distinct for unread in group
        )

    def bring_all(self, island: int) -> int:
        """Use all arguments of an island as they are, if all lie at their places already, without any event.

        It is the usual call of a training step, and its cost is paid by each of hundreds of arguments: in C mostly.

        Returns:
            The number of steps that this carries out; 0 if one needs a closer look.
        """
        brings = self.compiled_plan.brings_on(island)
        if not brings.steps or self.stopped or not self.moved_on.isdisjoint(brings.steps):
            return 0
        entries = list(map(self.arguments.__getitem__, brings.arguments))
        arrays = list(map(_array_of, entries))
        if any(map(is_, arrays, repeat(None))) or any(map(is_not, map(_error_of, entries), repeat(None))):
            return 0
        taken = list(map(self.arguments.__getitem__, brings.taken))
        if any(map(_is_shared, taken)) or self._has_others(taken) or any(map(self.is_read_by_others, brings.again)):
            return 0
        at_once(map(self.slots.__setitem__, brings.slots, arrays))
        at_once(map(self.done.__setitem__, brings.steps, repeat(1)))
        self.unread.difference_update(brings.steps)
        self.launched.notify_all()
        return len(brings.steps)

    def finish(self) -> None:
        """End the run and keep only its results: otherwise each run would keep the one before it alive."""
        self.finished = True
        for argument in () if self.stopped else self.compiled_plan.taken_over:
            self.arguments[argument].array = None  # if the node that takes its memory failed, it is still there
        self.slots, self.arguments, self.results = [], (), {}
        self.unread.clear()
        self.ended.notify_all()

    def error_of(self, step: int) -> PathwaysError | None:
        """Return the error that a step inherits from the steps before it, or ``None``."""
        return next((self.errors[p] for p in self.compiled_plan.plan.steps[step].producers if p in self.errors), None)

    def reason_to_skip(self, step: int) -> PathwaysError | None:
        """Return why a step that is due is not carried out: a cancel, or an input that will never come."""
        error = self.error_of(step) if self.errors else None
        if self.stopped and (error is None or isinstance(error, CancelledError)):
            return self.cancelled_error(step)  # each names itself, not the first of them
        return error

    def inherited_error(self, step: int, patience: float = 20.0) -> PathwaysError | None:
        """Return the error that a failed step got from an input, once that input's own watcher has named it."""
        deadline = time.monotonic() + patience
        plan, arguments = self.compiled_plan.plan, self.arguments  # none if the run has finished
        for producer in (step, *plan.steps[step].producers):
            argument = plan.steps[producer].argument
            entry = arguments[argument] if argument >= 0 and arguments else None
            while time.monotonic() < deadline and not (
                entry.resolved if entry is not None else producer == step or self.done[producer]
            ):
                time.sleep(5e-4)
            error = self.errors.get(producer) or (entry.error if entry is not None else None)
            if error is not None:
                return error
        return None

    def failed_results(self) -> tuple[int, ...]:
        """Return the buffers that will never hold anything."""
        steps = zip(self.buffers, self.compiled_plan.result_steps, strict=True)
        return tuple(buffer for buffer, step in steps if step in self.errors)

    def hold_inputs(self, step: int, island: int) -> None:
        """Keep the inputs of a step that is carried out late, even if a step behind it reads them for the last time."""
        self.late.add(step)
        for slot in self.compiled_plan.plan.steps[step].inputs:
            self.remaining_readers.setdefault(slot, {island}).add(~step)

    def let_go(self, step: int, island: int) -> None:
        """Drop the slots that no later step on any island reads."""
        made = self.compiled_plan.plan.steps[step]
        for slot in made.last:
            self._has_been_read(slot, island)
        for slot in made.inputs if step in self.late else ():
            self._has_been_read(slot, ~step)

    def _has_been_read(self, slot: int, reader: int) -> None:
        others = self.remaining_readers.get(slot)
        if others is not None:
            others.discard(reader)
        if not others:
            self.slots[slot] = None

    def node_error(self, step: int, cause: BaseException) -> PathwaysError:
        """Return the error for the user about a node that failed: which, where, and why."""
        label = self.compiled_plan.actions[step].label
        last = label.device + label.devices - 1
        devices = f"device {label.device}" if label.devices == 1 else f"devices {label.device}–{last}"
        devices = devices if label.devices else "its host"
        at = f" ({label.line})" if label.line else ""
        failed = (
            f"{label.name} of {label.program}, run {call_number(self.serial)}, failed on {label.place} "
            f"(island {label.island}, {devices}){at}"
        )
        where = Placement(label.island, label.device, label.devices)
        error = self.explain(where, failed, cause) or NodeError(f"{failed}: {_reason(cause)}")
        error.__cause__ = cause.with_traceback(None)  # its frames would keep the run alive
        return error

    def cancelled_error(self, step: int) -> PathwaysError:
        """Return the error for the user about a node that was not dispatched."""
        if self.reason is not None:
            return self.reason
        label = self.compiled_plan.actions[step].label
        return CancelledError(
            f"{label.name} of {label.program}, run {call_number(self.serial)}, was cancelled before it was dispatched. "
            f"Call the program again to compute it."
        )


def _reason(cause: BaseException) -> str:
    """Return the cause in one line; for a host callback the user's own error, not JAX's frames around it."""
    text = str(cause)
    if "CpuCallback error" in text:
        return f"{text.strip().splitlines()[-1]} (in a host callback)"
    if type(cause).__name__ == "InternalFloatingPointError":  # which JAX catches where it can run again by operations
        found = getattr(cause, "ty", "nan or inf")
        return f"an output has {found}. Look for the operation with jax.debug_{found}s under plain jax.jit"
    if isinstance(cause, StopIteration) and not text:
        text = "the iterator that it reads has no more items"
    at = " (in a host callback)" if NOTE in getattr(cause, "__notes__", ()) else ""
    return f"{type(cause).__name__}: {text}{at}"


def is_computed(array: Any) -> bool:
    """Return whether an array is computed by now; ``False`` where it does not tell."""
    try:
        return bool(array.is_ready())
    except Exception:  # host values and typed keys do not tell; or a later launch has taken its memory over
        return False


def lost(what: str) -> LostError:
    """Return the error for the user about a result whose devices were released."""
    return LostError(
        f"{what} was held on devices that have been let go (attached again, reset or closed). Run it again."
    )
