"""Users of a soak: threads that call programs, keep and drop results, open, close and cancel their clients at random.

Each user computes in NumPy what every result must be, and sorts every outcome into the allowed ones. Values are 32-bit
integers, which wrap around alike in NumPy and JAX, so that equality is exact and no tolerance can hide an error.
"""

from __future__ import annotations

import contextlib
import math
import random
import re
import threading
import traceback
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax.numpy as jnp
import numpy as np

import pathways_nb as pw

SHAPE = (64, 64)
"""Shape of every value, of 32-bit integers: sums wrap around alike everywhere."""
REASONS: dict[str, tuple[type[Exception] | tuple[type[Exception], ...], str]] = {
    "failed by fault": (pw.NodeError, r"of .*, run \d+, failed on .* injected fault \d+"),
    "cancelled": (pw.CancelledError, r"run \d+, was cancelled before it was dispatched"),
    "lost with their client": (pw.LostError, r"belonged to (the client '.*', which has |a client that .*)closed"),
    "lost with their devices": ((pw.LostError, pw.NodeError, pw.PlaceError), r"(was|were|is|are) lost"),
    "out of memory": (pw.OutOfMemoryError, r"(lacks|needs) .* Held by variables"),
}
"""Allowed errors in place of a value: the type, and a pattern that the text must match."""


@dataclass(frozen=True)
class SoakProgram:
    """A program with its NumPy equivalent.

    Args:
        program: to call.
        expected: the same in NumPy, from the argument to the results.
        takes: place of the argument if the program takes over its memory; else None.
    """

    program: pw.Program
    expected: Callable[[np.ndarray], tuple[np.ndarray, ...]]
    takes: pw.VirtualSlice | None = None


def kinds(left: pw.VirtualSlice, right: pw.VirtualSlice) -> list[SoakProgram]:
    """Return programs on one island and across both, with an all-reduce, two results, and a donated argument."""

    def on(place: pw.VirtualSlice, fn: Callable[..., Any], **options: Any) -> pw.Computation:
        """Return a computation with argument and result sharded along the axis."""
        return pw.jit(fn, on=place, in_shardings=pw.P("x"), out_shardings=pw.P("x"), **options)

    triple, add = on(left, lambda x: x * 3), on(right, lambda x: x + 1)
    spread, over = on(left, lambda x: x + jnp.sum(x, dtype=jnp.int32)), on(left, lambda x: x - 7, donate_argnums=0)

    def summed(x: np.ndarray) -> np.ndarray:
        """Return in NumPy what ``spread`` computes."""
        return x + x.sum(dtype=np.int32)

    return [
        SoakProgram(pw.program(lambda x: (triple(x),), name="triple"), lambda x: (x * 3,)),
        SoakProgram(pw.program(lambda x: (add(triple(x)),), name="across"), lambda x: (x * 3 + 1,)),
        SoakProgram(pw.program(lambda x: (triple(add(spread(x))),), name="back"), lambda x: ((summed(x) + 1) * 3,)),
        SoakProgram(
            pw.program(lambda x: (add(add(x)), spread(triple(x))), name="both"), lambda x: (x + 2, summed(x * 3))
        ),
        SoakProgram(
            pw.program(lambda x: (add(over(x)),), name="over", donate_argnums=0), lambda x: (x - 6,), takes=left
        ),
    ]  # fmt: skip


def fresh(chance: random.Random) -> np.ndarray:
    """Return a value that no other user is likely to have."""
    return np.arange(math.prod(SHAPE), dtype=np.int32).reshape(SHAPE) + np.int32(chance.randrange(2**24))


@dataclass
class UserPopulation:
    """State that all users share.

    Args:
        kinds: the programs they call.
        memory: limit in bytes per device of clients that have one.
        outcomes: number of programs by outcome.
        unexplained: errors of no allowed kind, and wrong values.
        passed_on: results that one user lets the others read.
        lock: guards the three above.
    """

    kinds: Sequence[SoakProgram]
    memory: float
    outcomes: Counter[str] = field(default_factory=Counter)
    unexplained: list[str] = field(default_factory=list)
    passed_on: deque[tuple[Any, np.ndarray]] = field(default_factory=lambda: deque(maxlen=3))
    lock: threading.Lock = field(default_factory=threading.Lock)

    def note(self, outcome: str) -> None:
        """Count one program with this outcome."""
        with self.lock:
            self.outcomes[outcome] += 1

    def sort(self, error: BaseException) -> None:
        """Count one program that ended in an error, which is of an allowed kind or unexplained."""
        for outcome, (kind, text) in REASONS.items():
            if isinstance(error, kind) and re.search(text, str(error)):
                return self.note(outcome)
        with self.lock:
            at = traceback.extract_tb(error.__traceback__)[-1:]
            self.unexplained.append(
                f"{type(error).__name__}: {error} ({''.join(f'{f.filename}:{f.lineno}' for f in at)})"
            )


class _Gone(Exception):  # noqa: N818
    """A user leaves in the middle of a block."""


class User(threading.Thread):
    """A thread that calls programs, in one block of a client after another.

    Args:
        population: shared state.
        number: of the user.
        programs: number of programs to call.
        seed: decides, with ``number``, all random choices.
    """

    def __init__(self, population: UserPopulation, number: int, programs: int, seed: int):
        super().__init__(name=f"soak-user-{number}", daemon=True)
        # A generator for each user: its choices do not depend on the order in which threads run.
        self.population, self.left, self.chance = population, programs, random.Random(f"{seed} {number}")
        self.own = f"user {number}"
        self.held: list[tuple[tuple[Any, ...], tuple[np.ndarray, ...]]] = []
        """Results of each program and their expected values."""

    def run(self) -> None:
        """Act until all programs have been called and every result held has been fetched."""
        try:
            while self.left:
                self._block()
            while self.held:
                self._fetch()
        except BaseException as error:
            self.population.sort(error)

    def _block(self) -> None:
        """Make some calls for a client, or outside any block; most users fetch their results before they leave."""
        chance = self.chance
        limit = chance.choice((None, None, self.population.memory))
        name = self.own if chance.random() < 0.7 else "anybody"  # a client that several threads share
        client = pw.client(name, chance.choice((1, 2, 4)), chance.randrange(3), limit)
        try:
            with client if chance.random() < 0.9 else contextlib.nullcontext():
                for _ in range(chance.randint(1, 40)):
                    self._act(client)
                    if chance.random() < 0.01:
                        raise _Gone
                while self.held and chance.random() < 0.9:
                    self._fetch()
        except _Gone:
            pass

    def _act(self, client: pw.Tenant) -> None:
        """Fetch a result, drop one, cancel or close the client, or call a program, at random."""
        dice = self.chance.random()
        if len(self.held) > 3 or (dice < 0.25 and self.held):
            self._fetch()
        elif dice < 0.35 and self.held:
            del self.held[self.chance.randrange(len(self.held))]
            self.population.note("dropped unseen")
        elif dice < 0.36:
            client.cancel()
        elif dice < 0.365:
            client.close()
        elif self.left:
            self._call()

    def _call(self) -> None:
        """Call a random program and keep its results with the expected values."""
        self.left -= 1
        kind = self.chance.choice(self.population.kinds)
        try:
            argument, value = self._argument(kind)
            self.held.append((kind.program(argument), kind.expected(value)))
        except pw.PathwaysError as error:  # the call is refused, or its argument is freed
            self.population.sort(error)

    def _argument(self, kind: SoakProgram) -> tuple[Any, np.ndarray]:
        """Return an argument and its value: a new value, a result of this user, or one of another user."""
        dice, value = self.chance.random(), fresh(self.chance)
        if kind.takes is not None:
            return pw.put(value, on=kind.takes, shardings=pw.P("x")), value
        if dice < 0.3 and self.held:
            results, values = self.chance.choice(self.held)
            at = self.chance.randrange(len(results))
            return results[at], values[at]
        if dice < 0.4:
            with self.population.lock:
                known = list(self.population.passed_on)
            if known:
                return self.chance.choice(known)
        return value, value

    def _fetch(self) -> None:
        """Fetch one random program's results and compare them with the expected values."""
        results, values = self.held.pop(self.chance.randrange(len(self.held)))
        try:
            for result, value in zip(results, values, strict=True):
                if not np.array_equal(result.result(), value):
                    raise AssertionError(f"{result!r} is not what it should be")
        except (pw.PathwaysError, AssertionError) as error:
            self.population.sort(error)
            return
        self.population.note("right")
        if self.chance.random() < 0.1:
            with self.population.lock:
                self.population.passed_on.append((results[0], values[0]))
