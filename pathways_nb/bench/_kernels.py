"""Two kernels on one shared controller that always have small programs queued: what each gets of what its share says.

It is run by ``bench cluster``; ``python -m pathways_nb.bench._kernels NAME SHARE`` is one kernel.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections import deque
from contextlib import ExitStack
from statistics import median

import jax.numpy as jnp

import pathways_nb as pw

SHARES = (1, 3)
DEPTH = 32
"""Calls outstanding of each kernel."""
SECONDS, ROUNDS = 2.0, 7
_MARK = "kernel: "
_RAMP = 0.3
"""Part of a round that does not count: at first not all kernels have programs queued."""


def share_of_three() -> float:
    """Return how many times as many small programs the kernel with three shares ran as the one with one share."""
    with ExitStack() as stack:
        kernels = [stack.enter_context(_kernel("bench shares", share)) for share in SHARES]
        for kernel in kernels:
            _said(kernel)
        found = []
        for _ in range(ROUNDS):
            for kernel in kernels:
                assert kernel.stdin is not None
                kernel.stdin.write("go\n")
                kernel.stdin.flush()
            one, three = (int(_said(kernel)) for kernel in kernels)
            found.append(three / max(one, 1))
        for kernel in kernels:
            kernel.communicate()
    return median(found)


def _kernel(name: str, share: float) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "pathways_nb.bench._kernels", name, str(share)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def _said(kernel: subprocess.Popen[str]) -> str:
    """Return what a kernel says next; lines of progress begin otherwise."""
    assert kernel.stdout is not None
    for line in kernel.stdout:
        if line.startswith(_MARK):
            return line.removeprefix(_MARK)
    raise RuntimeError("a kernel of bench cluster has ended; what it printed says why")


def _serve(name: str, share: float) -> None:
    """Be a kernel: run programs for a round at each line that comes, and say how many ended."""
    with pw.attach("ray", name=name, islands=1, devices_per_island=1, policy="stride"):
        place = pw.virtual_slice(1)
        add = pw.jit(lambda x: x + 1.0, on=place)
        program = pw.program(lambda x: add(x), name="small")
        value = pw.put(jnp.float32(0.0), on=place)
        program(value).wait()
        _say("ready")
        for _ in sys.stdin:
            with pw.client(f"with {share}", share=share):
                _say(str(_round(program, value)))


def _say(what: str) -> None:
    sys.stdout.write(f"{_MARK}{what}\n")
    sys.stdout.flush()


def _round(program: pw.Program, value: object) -> int:
    """Return how many programs ended while all kernels had some queued."""
    began, ended = time.perf_counter(), 0
    waiting = deque(program(value) for _ in range(DEPTH))
    while (now := time.perf_counter() - began) < SECONDS:
        waiting.append(program(value))
        waiting.popleft().wait()
        ended += now > _RAMP * SECONDS
    pw.wait(list(waiting))
    return ended


if __name__ == "__main__":
    _serve(sys.argv[1], float(sys.argv[2]))
