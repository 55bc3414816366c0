"""Failures of launches: devices that are lost, and faults injected to test what depends on what."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from types import TracebackType

from pathways_nb.errors import LostError
from pathways_nb.trace.rows import Label
from pathways_nb.util.unique import Unique


class InjectedFault(Exception):  # noqa: N818  (it is what the user asked for)
    """The error of a node that ``pw.inject_fault`` made fail."""


def check_devices(label: Label, lost_devices: Collection[int]) -> None:
    """Refuse to run on devices of an island that are ``gone``.

    Raises:
        LostError: naming the lost devices.
    """
    lost = sorted(device for device in lost_devices if label.device <= device < label.device + label.devices)
    if lost:
        raise LostError(f"device {', '.join(map(str, lost))} of island {label.island} was lost")


@dataclass(eq=False)
class Fault(Unique):
    """Decides which launches fail, and counts them in ``hits``; ``cancel`` or the end of its ``with`` block ends it.

    Args:
        node: name that must match; ``None``, here and below, matches everything.
        program: name that must match.
        client: name that must match.
        place: name that must match.
        island: index that must match.
        times: the most launches that fail.
        after: number of matching launches that succeed first.
        probability: with which each further matching launch fails.
        seed: of the generator that decides this.
        wait_all: waits for the calls made inside the ``with`` block, whose launches may come late.
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
    wait_all: Callable[[], None] = field(default=lambda: None, repr=False)
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
        """Let all further launches succeed."""
        self.over = True

    def __enter__(self) -> Fault:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            if kind is None:
                self.wait_all()
        finally:
            self.cancel()
