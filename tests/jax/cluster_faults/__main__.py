"""Three tenants call programs while hosts and Ray's servers are killed and stopped: is every future right, or told?

Two islands of two hosts each. After each fault the command waits until it is said and until programs run again on both
islands. It fails if a value is wrong, an error does not name what died, no call ended for longer than allowed, or
anything is left at the end.
"""

from __future__ import annotations

import argparse
import importlib
import os
import random
import signal
import sys
import threading
from collections import defaultdict
from collections.abc import Callable
from contextlib import suppress
from time import monotonic
from typing import Any

import jax.numpy as jnp
import numpy as np
import psutil

import pathways_nb as pw
from pathways_nb.errors import LostError, NodeError, PlaceError

TENANTS, SILENCE, UNRESPONSIVE = 3, 30.0, 10.0
"""Threads that call, seconds without any end that are allowed, and after which a host counts as dead."""
X = np.arange(8, dtype=np.float32)


def attached() -> pw.Controller:
    return pw.attach(
        "ray", islands=2, devices_per_island=2, devices_per_host=1, pin=False, unresponsive_after=UNRESPONSIVE
    )


def program() -> pw.Program:
    left, right = pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1)
    total = pw.jit(lambda v: jnp.sum(v) + v, on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    twice = pw.jit(lambda v: v * 2, on=right, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    return pw.program(lambda v: twice(total(v)), name="chaos")


class Calls:
    """What the tenants found.

    Args:
        called: the program.
        least: number of calls before which they do not end.
    """

    def __init__(self, called: pw.Program, least: int):
        self.called, self.least = called, least
        self.no_more_faults = False
        self.right = self.failed = 0
        self.bad: list[str] = []
        self.silence, self._last = 0.0, monotonic()
        self._lock, self.over = threading.Lock(), threading.Event()

    def serve(self, number: int) -> None:
        """Call until the end."""
        at = 0
        while not self.over.is_set():
            at += 1
            value = X + number * 1000 + at
            try:
                with pw.client(f"tenant {number}"):
                    results = [self.called(value + k) for k in range(4)]
                    for k, result in enumerate(results):
                        self.count(self.outcome(value + k, result.result))
            except (LostError, NodeError, PlaceError) as error:
                self.count(error)
                self.over.wait(1.0)  # the island, or the cluster, is made anew

    def outcome(self, value: Any, result: Callable[[], Any]) -> BaseException | None:
        """Return the error of a call; none if its value is right."""
        try:
            found = result()
        except BaseException as error:
            return error
        return None if np.allclose(found, (value.sum() + value) * 2) else ValueError(f"{found} of {value}")

    def count(self, error: BaseException | None) -> None:
        """Count a call that has ended, and how long none has."""
        with self._lock:
            now = monotonic()
            self.silence, self._last = max(self.silence, now - self._last), now
            self.right, self.failed = self.right + (error is None), self.failed + (error is not None)
            told = any(words in str(error) for words in ("island ", "Ray cluster", "another thread has closed"))
            if error is not None and not (isinstance(error, (LostError, NodeError, PlaceError)) and told):
                self.bad.append(f"{type(error).__name__}: {error}")
            if self.no_more_faults and self.right + self.failed >= self.least:
                self.over.set()


def until(ready: Callable[[], bool], what: str, limit: float = 180.0) -> float:
    """Wait for something and return the seconds that it took."""
    began, pause = monotonic(), threading.Event()
    while not ready():
        if monotonic() - began > limit:
            raise TimeoutError(f"{what}: not so after {limit:g} s")
        pause.wait(0.005)
    return monotonic() - began


class Faults:
    """Injects faults and waits for their ends.

    Args:
        chance: chooses hosts.
    """

    calls: Calls
    """What goes on meanwhile."""

    def __init__(self, chance: random.Random):
        self.chance, self.controller = chance, attached()
        self.kinds: dict[str, Callable[[], None]] = {
            "kill -9 of a host": lambda: self.signal_host(signal.SIGKILL),
            "a host is stopped": lambda: self.signal_host(signal.SIGSTOP),
            "kill -9 of a host, and of a new one as it starts": self.kill_twice,
            "kill -9 of the raylet": lambda: self.signal_server("raylet", signal.SIGKILL),
            "kill -9 of the GCS": lambda: self.signal_server("gcs_server", signal.SIGKILL),
            "the GCS is stopped": lambda: self.signal_server("gcs_server", signal.SIGSTOP),
        }

    @property
    def driver(self) -> Any:
        return self.controller.driver_or_none

    def signal_host(self, number: int) -> None:
        island = self.chance.choice(self.driver.islands)
        os.kill(self.chance.choice(island.links).facts.process, number)

    def kill_twice(self) -> None:
        maker, host = self.driver.attachment.maker, self.chance.randrange(2)
        begin = maker._begin

        def beginning(links: Any) -> Any:
            begun, maker._begin = begin(links), begin
            with suppress(Exception):
                os.kill(links[host].process.result(60.0).number, signal.SIGKILL)
            return begun

        maker._begin = beginning
        self.signal_host(signal.SIGKILL)

    def signal_server(self, name: str, number: int) -> None:
        node = importlib.import_module("ray._private.worker")._global_node
        os.kill(node.all_processes[name][0].process.pid, number)

    def inject(self, kind: str) -> tuple[float, float]:
        """Return the seconds from a fault until it is said, and until programs run again."""
        began = monotonic()
        lives = [island.generation for island in self.driver.islands]
        self.kinds[kind]()
        driver = self.driver

        def said() -> bool:
            now = [island.generation for island in driver.islands]
            return now != lives or any(island.lost for island in driver.islands)

        noticed = until(said, kind)
        if driver.cluster_lost or self.controller.lost():
            self.controller = attached()
        until(self.runs, f"programs run again after: {kind}")
        return noticed, monotonic() - began

    def runs(self) -> bool:
        if self.controller.lost():
            self.controller = attached()
        try:
            return self.calls.outcome(X, self.calls.called(X).result) is None
        except (LostError, NodeError, PlaceError):
            return False


def left_over(folder: str) -> list[str]:
    """Return what there is of the last cluster when the kernel has let go of it."""
    pw.attach("cpu", islands=1, devices_per_island=1)
    float(pw.jit(lambda v: v + 1, on=pw.virtual_slice(1))(1.0))

    def living() -> list[str]:
        found = []
        for process in psutil.Process().children(recursive=True):
            with suppress(psutil.NoSuchProcess):
                if process.status() != psutil.STATUS_ZOMBIE:
                    found.append(f"{process.name()} ({process.pid})")
        return found

    with suppress(TimeoutError):
        until(lambda: not living(), "all processes have ended", 10.0)
    return [*living(), *([folder] if os.path.exists(folder) else [])]


def main(calls: int, faults: int, seed: int) -> int:
    """Run, print a table of the faults, and return 1 if anything was not as it must be."""
    chance = random.Random(seed)
    injected = Faults(chance)
    found = injected.calls = Calls(program(), calls)
    if found.outcome(X, found.called(X).result) is not None:  # compile
        return 1
    threads = [threading.Thread(target=found.serve, args=(number,), daemon=True) for number in range(TENANTS)]
    for thread in threads:
        thread.start()
    times: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for number in range(faults):
        until(lambda due=number * calls // (faults + 1): found.right + found.failed >= due, "calls end")  # type: ignore[misc]
        kind = list(injected.kinds)[number % len(injected.kinds)]
        times[kind].append(injected.inject(kind))
        print(f"{number + 1} of {faults}, {kind}: said after {times[kind][-1][0]:.1f} s, programs run again after "
              f"{times[kind][-1][1]:.1f} s; {found.right} right, {found.failed} failed", flush=True)  # fmt: skip
    found.no_more_faults = True
    until(found.over.is_set, "calls end", 600.0)
    for thread in threads:
        thread.join(60)
    folder = importlib.import_module("ray._private.worker")._global_node.get_session_dir_path()
    rest = left_over(folder)
    print("| fault | times | said after, at most (s) | programs run again after, at most (s) |\n|---|---|---|---|")
    for kind, some in times.items():
        said, again = (max(column) for column in zip(*some, strict=True))
        print(f"| {kind} | {len(some)} | {said:.1f} | {again:.1f} |")
    print(
        f"{found.right} right, {found.failed} failed, longest silence {found.silence:.1f} s, left: {rest or 'nothing'}"
    )
    for line in found.bad[:10]:
        print(f"not as it must be: {line}")
    bad = found.bad or rest or found.silence > SILENCE or any(thread.is_alive() for thread in threads)
    return 1 if bad else 0


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=3000)
    parser.add_argument("--faults", type=int, default=30)
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    sys.exit(main(asked.calls, asked.faults, asked.seed))
