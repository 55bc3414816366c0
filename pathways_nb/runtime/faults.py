"""Faults: devices that are lost, and those made on purpose, to test what depends on what: a launch fails instead."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from types import TracebackType

from pathways_nb.errors import LostError
from pathways_nb.trace.record import Label
from pathways_nb.util.unique import Unique


class InjectedFault(Exception):  # noqa: N818  (it is what the user asked for)
    """What a node raises on which ``pw.inject_fault`` struck."""


def check_devices(label: Label, gone: Collection[int]) -> None:
    """Refuse to run on devices of an island that are ``gone``.

    Raises:
        LostError: which of its devices are.
    """
    lost = sorted(device for device in gone if label.device <= device < label.device + label.devices)
    if lost:
        raise LostError(f"device {', '.join(map(str, lost))} of island {label.island} was lost")


@dataclass(eq=False)
class Fault(Unique):
    """Which launches fail; ``hits`` counts them. The end of its ``with`` block, or ``cancel``, takes it back.

    Args:
        node, program, client, place: names that must fit; ``None`` fits all.
        island: index that must fit; ``None`` fits all.
        times: launches to strike at most. after: fitting launches to let pass first.
        probability, seed: of striking each of the others.
        settle: waits for what was called inside the ``with`` block, whose launches may come late.
    """

    _not_pickled = "cannot be pickled: it waits for this process's devices. Call pw.inject_fault(...) in the other one."
    node: str | None = None
    program: str | None = None
    client: str | None = None
    place: str | None = None
    island: int | None = None
    times: int = 1
    after: int = 0
    probability: float = 1.0
    seed: int = 0
    hits: int = 0
    passed: int = 0
    over: bool = False
    settle: Callable[[], None] = field(default=lambda: None, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    def __post_init__(self) -> None:
        self._random = random.Random(self.seed)

    def strike(self, label: Label, client: str) -> None:
        """Raise if this launch is one that fails.

        Raises:
            InjectedFault: it is.
        """
        wanted = (self.node, self.program, self.client, self.place, self.island)
        found = (label.name, label.program, client, label.place, label.island)
        if any(w is not None and w != f for w, f in zip(wanted, found, strict=True)):
            return
        with self._lock:
            self.passed += 1
            if (
                self.over
                or self.hits == self.times
                or self.passed <= self.after
                or self._random.random() >= self.probability
            ):
                return
            self.hits += 1
            raise InjectedFault(f"injected fault {self.hits} of at most {self.times}")

    def cancel(self) -> None:
        """Strike no more."""
        self.over = True

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.settle()
        finally:
            self.cancel()
