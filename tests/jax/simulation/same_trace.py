"""One seed, one trace: three client threads over two islands, with tenants, links and noise, again and again.

``python -m tests.jax.simulation.same_trace --runs 30 --busy 2`` prints how many different traces there were; while half of the
runs go on, so many processes keep the machine's cores busy.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp

import pathways_nb as pw

CLIENTS = ("ann", "bob", "cat")
COLUMNS = "kind name program client node island device start end run status parents bytes route".split()


def trace(seed: int, calls: int = 6) -> tuple[Any, ...]:
    """All events of one run, in the order in which they were recorded."""
    with pw.attach("sim:tpu_v3:2x4", seed=seed, noise=0.2, dcn_latency=1e-5), pw.record() as run:
        threads = [threading.Thread(target=_call, args=(name, calls + at)) for at, name in enumerate(CLIENTS)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    return tuple(tuple(run.events[column].tolist()) for column in COLUMNS)


def _call(name: str, calls: int) -> None:
    """One client: chains over both islands, cold programs, loose calls, values that are put, polls."""
    left, right = pw.virtual_slice(4, island=0, name="left"), pw.virtual_slice(4, island=1, name="right")
    double = pw.jit(lambda x: x * 2, on=left, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    work = pw.work(2e-4, on=right, name=f"work of {name}")
    chain = pw.program(lambda x: work(double(x)), name=f"chain of {name}")
    x = jax.ShapeDtypeStruct((1 << 16,), jnp.float32)
    with pw.client(name, share=1 + len(name) % 2):
        for number in range(calls):
            y = chain(pw.put(x, on=left) if number % 2 else x)
            z = double(x)
            y.wait()
            while not z.done():
                pass


@contextlib.contextmanager
def busy(processes: int) -> Iterator[None]:
    """Keep so many cores busy with processes of their own inside the block."""
    code = "import time\nend = time.monotonic() + 600\nwhile time.monotonic() < end: pass"
    started = [subprocess.Popen([sys.executable, "-c", code]) for _ in range(processes)]
    try:
        yield
    finally:
        for process in started:
            process.kill()
            process.wait()


@contextlib.contextmanager
def often() -> Iterator[None]:
    """Let Python change threads about 5,000 times as often as usual: what two threads do meets far more often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def traces(runs: int, processes: int, seed: int = 7) -> set[tuple[Any, ...]]:
    """The different traces of ``runs`` runs: half of them beside busy processes, every other one changing threads."""
    found = set()
    for half, number in (contextlib.nullcontext(), runs - runs // 2), (busy(processes), runs // 2):
        with half:
            for at in range(number):
                with often() if at % 2 else contextlib.nullcontext():
                    found.add(trace(seed))
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the number of different traces; 0 if there is one."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=30)
    parser.add_argument("--busy", type=int, default=2)
    parser.add_argument("--seed", type=int, default=7)
    asked = parser.parse_args(arguments)
    found = traces(asked.runs, asked.busy, asked.seed)
    events = {len(trace[0]) for trace in found}
    print(f"{asked.runs} runs of seed {asked.seed}: {len(found)} different traces of {events} events")
    return len(found) != 1


if __name__ == "__main__":
    sys.exit(main())
