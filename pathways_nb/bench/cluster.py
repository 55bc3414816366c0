"""Cluster: dispatch over real process boundaries, against plain Ray actors; transfers, failure, data parallelism.

Each of four islands is one host with one device. A chain of 128 small computations goes round the islands once, an
equal part on each: one program for each computation, waited for (``OpByOp``), one program of all (``Chained``), one
computation for each island (``Fused``). Plain Ray actors do the same with a call for each computation. ``crossing`` is
the other extreme: every computation is on the next island, and so is bounded by the way of a value between hosts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

import pathways_nb as pw
from pathways_nb.bench import _ray_actors
from pathways_nb.bench import islands as islands_bench
from pathways_nb.bench._hosts import counted_messages, failed_after, kill_gcs, killed, stop_host, transfer_rate
from pathways_nb.bench._kernels import share_of_three
from pathways_nb.bench.stopwatch import interleaved, ratio, spread

HOSTS, LENGTH, ROUNDS, STEPS = (1, 2, 4), 128, 5, 3
"""Numbers of hosts, computations of a chain, rounds, and timed steps of data parallelism."""
SINGLY = 16
"""Computations of a round that are waited for one by one."""
STAGES, CALLS = 4, 8
"""Stages of the program whose dispatch is compared, and its calls in a round."""
MEGABYTES = 64
"""Size of the array that is transferred."""


def run() -> dict[str, Any]:
    """Return rates and those of Ray actors, messages, dispatch, transfers, failure, and training on two islands.

    Raises:
        UsageError: Ray is not installed.
    """
    figures: dict[str, float] = {}
    detail: dict[str, Any] = {"computations per second": []}
    with pw.attach("ray", islands=max(HOSTS), devices_per_island=1) as controller:
        places = [pw.virtual_slice(1, island=island) for island in range(max(HOSTS))]
        with _ray_actors.chains(max(HOSTS)) as actors:
            for hosts in HOSTS:
                _rates(controller, places[:hosts], actors, figures, detail["computations per second"])
        figures["messages_per_host_per_program"] = _messages(controller, places)
        seconds = _dispatches(controller, places)
        figures["parallel_over_sequential_4_stages"] = ratio(seconds, "sequential", "parallel")
        detail["seconds of programs of 4 stages"] = {name: spread(times) for name, times in seconds.items()}
        figures[f"transfer_gb_per_s_{MEGABYTES}mb_ray"] = transfer_rate(places[0], places[1], MEGABYTES, ROUNDS)
        figures |= _training(places[:2], detail)
        figures["detect_seconds"], figures["rebuild_seconds"] = killed(controller, places[-1])
    with pw.attach("ray", islands=2, devices_per_island=1, transfers="device"):
        left, right = (pw.virtual_slice(1, island=island) for island in range(2))
        figures[f"transfer_gb_per_s_{MEGABYTES}mb_device"] = transfer_rate(left, right, MEGABYTES, ROUNDS)
    with pw.attach("ray", islands=2, devices_per_island=1, unresponsive_after=10) as controller:
        left, right = (pw.virtual_slice(1, island=island) for island in range(2))
        figures["stopped_host_seconds"] = failed_after(left, partial(stop_host, controller, left))
        figures["gcs_loss_seconds"] = failed_after(right, kill_gcs)
    figures["share_of_three_small_2_kernels"] = share_of_three()
    units = {name: "GB/s" for name in figures if name.startswith("transfer_gb")}
    return {"figures": figures, "detail": detail, "units": units}


# ---- chains


class ProgramChain:
    """A chain as programs.

    Args:
        places: of the islands.
        turns: the island of each computation.
    """

    def __init__(self, places: Sequence[pw.VirtualSlice], turns: Sequence[int]):
        self.turns = turns
        add = [pw.jit(lambda x: x + 1.0, on=place) for place in places]
        rounds = [pw.jit(partial(_added, turns.count(at)), on=place) for at, place in enumerate(places)]
        self.start = pw.put(jnp.float32(0.0), on=places[0])
        self.steps = [pw.program(partial(_through, [one]), name="one computation") for one in add]
        self.all = pw.program(partial(_through, [add[turn] for turn in turns]), name=f"chain of {len(turns)}")
        self.whole = pw.program(partial(_through, rounds), name=f"fused chain of {len(turns)}")
        for form in (self.singly, self.chained, self.fused):
            form()

    def singly(self) -> None:
        """Run each computation as a program of its own, and wait for it before the next."""
        found = self.start
        for turn in self.turns[:: max(1, len(self.turns) // SINGLY)][:SINGLY]:
            found = self.steps[turn](found)
            found.wait()

    def chained(self) -> float:
        """Return the value after one program of all computations."""
        return float(self.all(self.start))

    def fused(self) -> float:
        """Return the value after one program of one computation for each island."""
        return float(self.whole(self.start))


def _added(times: int, x: Any) -> Any:
    return jax.lax.fori_loop(0, times, lambda _, y: y + 1.0, x)


def _through(computations: Sequence[Callable[[Any], Any]], x: Any) -> Any:
    for one in computations:
        x = one(x)
    return x


def _rates(
    controller: pw.Controller,
    places: list[pw.VirtualSlice],
    actors: Any,
    figures: dict[str, float],
    rows: list[dict[str, Any]],
) -> None:
    """Add the rates on some hosts to ``figures`` and ``rows``."""
    hosts = len(places)
    stays = [at * hosts // LENGTH for at in range(LENGTH)]
    chain = ProgramChain(places, stays)
    some = stays[:: LENGTH // SINGLY]
    contenders: dict[str, Callable[[], object]] = {
        "OpByOp": chain.singly,
        "Chained": chain.chained,
        "Fused": chain.fused,
        "Ray actors, OpByOp": lambda: actors.run(some, blocking=True),
        "Ray actors, Chained": lambda: actors.run(stays),
        "Ray actors, Chained, no references": lambda: actors.run(stays, ahead=True),
        "Ray actors, Fused": lambda: actors.fused(stays),
    }
    if hosts > 1:
        turns = [at % hosts for at in range(LENGTH)]
        contenders |= {
            "crossing": ProgramChain(places, turns).chained,
            "Ray actors, crossing": lambda: actors.run(turns),
        }
    seconds = interleaved(contenders, ROUNDS)
    controller.record.clear()
    compared = {"opbyop": "OpByOp", "chained": "Chained", "fused": "Fused", "crossing": "crossing"}
    for name, form in compared.items():
        if form in seconds:
            figures[f"{name}_over_ray_actors_{hosts}_hosts"] = ratio(seconds, f"Ray actors, {form}", form)
    ahead = "Ray actors, Chained, no references"
    figures[f"chained_over_ray_actors_without_references_{hosts}_hosts"] = ratio(seconds, ahead, "Chained")
    counts = {name: SINGLY if "OpByOp" in name else LENGTH for name in seconds}
    rows += [{"hosts": hosts, "form": name, "rate": counts[name] / median(times)} for name, times in seconds.items()]


# ---- programs of several stages


def _staged(places: Sequence[pw.VirtualSlice]) -> tuple[pw.Program, Any]:
    """Return a program with a stage on each island, and its argument."""
    stages = [pw.jit(lambda x: jnp.tanh(x @ x), on=place) for place in places]
    program = pw.program(partial(_through, stages), name=f"{len(stages)} stages")
    start = pw.put(jnp.eye(64, dtype=jnp.float32), on=places[0])
    program(start).wait()
    return program, start


def _messages(controller: pw.Controller, places: Sequence[pw.VirtualSlice]) -> float:
    """Return the messages that each host gets for a program, which has a stage on each."""
    program, start = _staged(places)
    controller.wait_all()
    with counted_messages(controller) as count:
        for _ in range(CALLS):
            program(start).wait()
        return count() / CALLS / len(places)


def _dispatches(controller: pw.Controller, places: Sequence[pw.VirtualSlice]) -> dict[str, list[float]]:
    """Return the seconds of some programs of four stages in parallel and in sequential dispatch, on the same hosts."""
    program, start = _staged(places[:STAGES])

    def programs(dispatch: Any) -> None:
        controller.wait_all()
        controller.machine.dispatch = dispatch  # nothing is under way
        pw.wait([program(start) for _ in range(CALLS)])

    try:
        return interleaved({name: partial(programs, name) for name in ("parallel", "sequential")}, 2 * ROUNDS)
    finally:
        programs("parallel")


# ---- data parallelism


def _training(places: list[pw.VirtualSlice], detail: dict[str, Any]) -> dict[str, float]:
    """Return what ``bench islands`` measures, on hosts."""
    two, one = islands_bench.Trainer(places), islands_bench.Trainer(places[:1])
    steps: dict[str, Callable[[], object]] = {islands_bench.TWO: two.step, islands_bench.ONE: one.step}
    interleaved(steps, 1)  # compile
    two.exchanges.clear()
    seconds = interleaved(steps, STEPS)
    detail["seconds of training steps"] = {name: spread(times) for name, times in seconds.items()}
    detail["exchange seconds"] = spread([exchange.seconds for exchange in two.exchanges])
    return {
        "exchange_hidden_share": median(exchange.hidden_share for exchange in two.exchanges),
        "two_islands_over_one": islands_bench.throughput(seconds, islands_bench.TWO, islands_bench.ONE),
    }
