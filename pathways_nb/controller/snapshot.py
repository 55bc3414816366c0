"""A copy of the core's whole state, as bytes: quick to take, made objects again when it is asked for.

Pickle is used within this process alone, and never read from a file. It is ten times as fast as a deep copy (measured),
and the core waits for it.
"""

from __future__ import annotations

import io
import pickle
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple
from weakref import WeakKeyDictionary

from pathways_nb.controller.policies import Policy
from pathways_nb.controller.state import CallState
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.plan.plan import Plan


@dataclass(frozen=True, eq=False)
class Snapshot:
    """The state at one moment.

    Args:
        data: of all objects but those in ``kept``.
        kept: what is not copied: plans, and the policy.
        calls: number of calls, whose states follow the rest.
    """

    data: bytes
    kept: tuple[Any, ...]
    calls: int

    @classmethod
    def of(cls, machine: StateMachine, plan_of: Callable[[Plan], Plan] = lambda plan: plan) -> Snapshot:
        """Return the state of a core, with ``plan_of(plan)`` in place of each plan."""
        file, kept, numbers, calls = io.BytesIO(), list[Any](), dict[int, int](), list[CallState]()

        def keep(value: Any) -> tuple[Any, ...]:
            number = numbers.get(id(value))
            if number is None:
                number = numbers[id(value)] = len(kept)
                kept.append(plan_of(value) if isinstance(value, Plan) else value)
            return _kept, (number,)

        def with_policy(core: StateMachine) -> tuple[Any, ...]:
            # A policy may be a lambda or a function of a notebook's cell, which pickle cannot find by name.
            state = {**vars(core), "policy": _Policy(core.policy)}
            return object.__new__, (StateMachine,), state

        def empty(call: CallState) -> tuple[Any, ...]:
            calls.append(call)
            # Empty at first: its fields follow one call after another, see below.
            return object.__new__, (CallState,)

        # A dispatch table, not methods of the classes: pickling is this module's way to copy, and no promise of theirs.
        writer = pickle.Pickler(file, pickle.HIGHEST_PROTOCOL)
        writer.dispatch_table = {
            Plan: keep, CallState: empty, StateMachine: with_policy, _Policy: lambda one: keep(one.policy),
            WeakKeyDictionary: lambda table: (WeakKeyDictionary, (), None, None, iter(list(table.items()))),
        }  # fmt: skip
        writer.dump(machine)
        for call in calls:  # which grows: calls refer to the next ones, and one within the other would be too deep
            writer.dump((call, vars(call)))
        return cls(file.getvalue(), tuple(kept), len(calls))

    def machine(self) -> StateMachine:
        """Return a core in this state; another one at each call."""
        reader = _Unpickler(self)
        found: StateMachine = reader.load()
        for _ in range(self.calls):
            # In one reader, so that its memo knows the empty calls that the first object refers to.
            call, state = reader.load()
            vars(call).update(state)
        return found


class _Policy(NamedTuple):
    """A function that is kept as it is: pickle would look for its name."""

    policy: Policy


def _kept(number: int) -> Any:
    raise LookupError(f"what was kept as {number} is known to the reader of its snapshot alone")


class _Unpickler(pickle.Unpickler):
    def __init__(self, snapshot: Snapshot):
        super().__init__(io.BytesIO(snapshot.data))
        self._kept = snapshot.kept

    def find_class(self, module: str, name: str) -> Any:
        """Return what a name stands for; ``_kept`` for what this snapshot has kept."""
        return (
            self._kept.__getitem__ if (module, name) == (__name__, _kept.__name__) else super().find_class(module, name)
        )
