"""Dispatch: small computations per second, through the controller, in plain loops and in peers (Pathways, Figure 5).

Each computation is one scalar all-reduce and an addition. The controller runs them one program each (``OpByOp``), in
programs of 16 or 128 (``Chained``) and fused into one node (``Fused``), always recording. Compared are plain JAX
loops of the same executable on the same island, and Ray and Dask where they are installed. The loops use the
controller's own executable, so that a ratio compares dispatch alone and not two compilations. The shortest node that
hides dispatch (Figure 6) is looked for among longer ones, see ``_hidden_dispatch``.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import jax

import pathways_nb as pw
from pathways_nb.bench import _calls, peers
from pathways_nb.bench import _hidden_dispatch as hidden_dispatch
from pathways_nb.bench.stopwatch import interleaved, ratio, spread
from pathways_nb.session.calls import submit

DEVICES, CHAINS, ROUNDS = (1, 2, 4), (1, 16, 128), 15
"""Numbers of devices, lengths of programs, and rounds."""
SHORT = (1, 4), (1, 128), 5
"""The same of the short form, which leaves out the paper's other forms and the peers."""
SPEED = {"chained_over_jax_*": "higher"}
LONG, PEER_DEVICES, PEER_ROUNDS = 128, (1, 4), 5
"""Length of the program that is compared with peers, and their numbers of devices and rounds."""
_COMPUTATIONS = 512
"""Computations of each contender in a round."""


def run(short: bool = False) -> dict[str, Any]:
    """Return the rates of every chain on every number of devices, and of the peers on one and four."""
    figures: dict[str, float] = {}
    detail: list[dict[str, Any]] = []
    numbers, chains, rounds = SHORT if short else (DEVICES, CHAINS, ROUNDS)
    controller = pw.attach("cpu", islands=1, devices_per_island=max(numbers))
    figures["call_us"] = _calls.call_seconds(_Chain(controller, 1, 1), 2 * rounds) * 1e6
    for devices in numbers:
        for length in chains:
            seconds = _against_loops(_Chain(controller, devices, length), rounds)
            figures[f"chained_over_jax_loop_{length}x{devices}"] = ratio(seconds, "loop", "chained")
            figures[f"chained_over_jax_blocking_{length}x{devices}"] = ratio(seconds, "blocking", "chained")
            detail.append(_row(devices, length, seconds))
            if (length, devices) == (LONG, 1):
                figures["node_overhead_us"] = _overhead(seconds) * 1e6
        if short:
            continue
        seconds = _forms(controller, devices)
        figures[f"chained_over_opbyop_{LONG}x{devices}"] = ratio(seconds, "opbyop", "chained")
        figures[f"fused_over_chained_{LONG}x{devices}"] = ratio(seconds, "chained", "fused")
        detail.append(_row(devices, LONG, seconds))
    if not short:
        _measure_peers(controller, figures, detail)
        found, rows = hidden_dispatch.measured(controller, ROUNDS, executable)
        figures |= found
        detail += rows
        figures |= _calls.step_overheads(rounds)
        figures["first_call_seconds_2000_leaves"] = _calls.first_call_seconds()
    return {"figures": figures, "detail": detail}


def _measure_peers(controller: pw.Controller, figures: dict[str, float], detail: list[dict[str, Any]]) -> None:
    """Add the ratios of installed peers to ``figures``; a peer that does not start is noted in ``detail``."""
    for name, start in peers.installed().items():
        for devices in PEER_DEVICES:
            try:
                seconds = _against_peer(controller, devices, name, start)
            except Exception as error:  # the report shows what keeps a peer from starting
                detail.append({"devices": devices, "peer": name, "absent": f"{type(error).__name__}: {error}"})
                continue
            figures[f"chained_over_{name}_{devices}"] = ratio(seconds, name, "chained")
            detail.append(_row(devices, LONG, seconds, LONG))


class _Chain:
    """A compiled program of computations on some devices of one island.

    Args:
        controller: of the session.
        devices: number of devices.
        length: computations in the program.
        fuse: whether they become one node.
    """

    def __init__(self, controller: pw.Controller, devices: int, length: int, fuse: bool = False):
        self.controller, self.length = controller, length
        place = pw.virtual_slice(devices)
        add = pw.shard_map(lambda x: jax.lax.psum(x, "x") + 1.0, on=place, in_specs=pw.P(), out_specs=pw.P())

        def body(x: Any) -> Any:
            for _ in range(length):
                x = add(x)
            return x

        self.program = pw.program(body, name=f"chain of {length}", fuse=fuse)
        self.start = pw.put(1.0, on=place)
        # Compile before any round is timed.
        self.program(self.start).wait()
        self.repeats = max(1, _COMPUTATIONS // length)

    def programs(self) -> None:
        """Run programs that do not depend on each other."""
        pw.wait([self.program(self.start) for _ in range(self.repeats)])

    def in_turn(self) -> None:
        """Run programs of which each takes the result of the one before."""
        result = self.start
        for _ in range(self.repeats):
            result = self.program(result)
        result.wait()

    def loop(self, blocking: bool) -> Callable[[], None]:
        """Return a loop of the same computations without the controller.

        Args:
            blocking: whether to wait for each computation before the next.
        """
        call, start = executable(self.controller, self.program, self.start), self.start.array()

        def loop() -> None:
            array = start
            for _ in range(_COMPUTATIONS):
                (array,) = call(array)
                if blocking:
                    array.block_until_ready()
            array.block_until_ready()

        return loop


def _against_loops(chain: _Chain, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of chained programs and of both loops."""
    contenders = {"chained": chain.programs, "loop": chain.loop(blocking=False), "blocking": chain.loop(blocking=True)}
    return _measure(chain.controller, contenders, rounds)


def _forms(controller: pw.Controller, devices: int) -> dict[str, list[float]]:
    """Return the seconds of the paper's three forms, each program taking the result of the one before."""
    contenders = {
        "opbyop": _Chain(controller, devices, 1).in_turn,
        "chained": _Chain(controller, devices, LONG).in_turn,
        "fused": _Chain(controller, devices, LONG, fuse=True).in_turn,
    }
    return _measure(controller, contenders, ROUNDS)


def _against_peer(controller: pw.Controller, devices: int, name: str, start: Any) -> dict[str, list[float]]:
    """Return the seconds of one chained program and of the same chain in a peer."""
    chain = _Chain(controller, devices, LONG)
    with start(devices) as of_peer:
        # A first chain, so that starting the peer's workers is not timed.
        of_peer(LONG)
        contenders = {"chained": lambda: chain.program(chain.start).wait(), name: partial(of_peer, LONG)}
        return _measure(controller, contenders, PEER_ROUNDS)


def _measure(controller: pw.Controller, contenders: Any, rounds: int) -> dict[str, list[float]]:
    """Return the seconds of contenders that take turns, and clear the record, which would grow with every bench."""
    seconds = interleaved(contenders, rounds)
    controller.record.clear()
    return seconds


def _overhead(seconds: dict[str, list[float]]) -> float:
    """Return the seconds of a node beyond its launch: chained programs less the plain loop, per computation."""
    pairs = zip(seconds["chained"], seconds["loop"], strict=True)
    return median(chained - loop for chained, loop in pairs) / _COMPUTATIONS


def _row(devices: int, chain: int, seconds: dict[str, list[float]], count: int = _COMPUTATIONS) -> dict[str, Any]:
    """Return the row of the table: quartiles of computations per second."""
    rates = {name: spread([count / s for s in times]) for name, times in seconds.items()}
    return {"devices": devices, "chain": chain, "computations_per_second": rates}


def executable(controller: pw.Controller, program: pw.Program, *args: Any) -> Callable[..., Any]:
    """Return the compiled node of a program whose nodes are all the same, to call without the controller.

    Args:
        controller: of the session.
        program: the program.
        args: arguments of a call, which decide shapes and shardings.
    """
    call = program.signature(args, {})
    compiled_plan = submit.compiled_plan(controller, submit.traced(controller, program, call), call)
    return next(action.call for action in compiled_plan.actions if action.call is not None)
