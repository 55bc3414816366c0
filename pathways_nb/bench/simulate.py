"""Simulation: gang operations per second through the real controller, compared with SimPy and a static schedule.

A chain of gangs over all of 2,048 simulated devices is called again and again: the controller decides, the simulated
islands carry out, everything is recorded. SimPy, where it is installed, does the same number of requests, timeouts and
releases of one resource. A schedule of fixed order needs no event loop, and is evaluated as arrays
(``timing.fixed_order``), beside a wavefront that is written in NumPy for this one pipeline. Where the compiler of TPUs
is installed, a step of Llama 3 8B is simulated with it, each time in a fresh process.
"""

from __future__ import annotations

import gc
import importlib.util
import math
import tracemalloc
from collections.abc import Callable
from functools import partial
from statistics import median
from typing import Any

import jax
import numpy as np

import pathways_nb as pw
from pathways_nb.bench import _deep_step
from pathways_nb.bench.stopwatch import interleaved, ratio, spread
from pathways_nb.compilers import packages
from pathways_nb.timing.fixed_order import OrderEdges, evaluate

DEVICES, FEW, NODES, CALLS, ROUNDS = 2048, 8, 1000, 20, 15
"""Devices of the island, and of the one to compare with; nodes of a chain, calls in a round, and rounds."""
SIZES = (250, 1000, 4000, 16_000)
"""Nodes of the chains that show how time grows."""
STAGES, MICROBATCHES = 2048, 512
"""Stages and microbatches of the static schedule: about a million tasks."""
STAGED, STAGED_ROUNDS = 200, 5
"""Nodes of the program whose whole simulation, from the attach on, is compared; rounds of it and of what is static."""
LASTS = 1e-3
"""Simulated seconds of a gang."""
SHORT_CALLS, SHORT_ROUNDS = 5, 5
"""Calls in a round, and rounds, of the short form."""
SPEED = {
    "gang_ops_over_simpy": "higher",
    "seconds_2048_over_8_devices": "lower",
    "static_tasks_over_array": "lower",
    "static_million_over_wavefront": "lower",
}


def run(short: bool = False) -> dict[str, Any]:
    """Return rates, growth with size, memory per event, and the time of whole simulations and static schedules."""
    figures, detail = _gangs(*((SHORT_CALLS, SHORT_ROUNDS) if short else (CALLS, ROUNDS)))
    if not short:
        _measure_growth(figures, detail)
    whole = {str(devices): partial(whole_simulation, devices) for devices in (DEVICES, FEW)}
    interleaved(whole, 1)  # fills JAX's own caches
    times = interleaved(whole, STAGED_ROUNDS)
    figures["seconds_2048_over_8_devices"] = ratio(times, str(DEVICES), str(FEW))
    contenders = {
        "pipeline": pipeline,
        "random graph": random_graph(STAGES, MICROBATCHES),
        "wavefront": wavefront,
        "running maximum": running_maximum,
    }
    static = interleaved(contenders, STAGED_ROUNDS)
    figures["static_million_tasks_seconds"] = median(static["pipeline"])
    figures["static_million_over_wavefront"] = ratio(static, "pipeline", "wavefront")
    figures["static_tasks_over_array"] = ratio(static, "pipeline", "running maximum")
    if not short and packages.is_installed("tpu"):
        figures |= _deep_step.simulated()
    if not short and packages.is_installed("gpu"):
        figures |= _deep_step.adopted()
    detail |= {f"seconds, whole simulation on {devices} devices": spread(found) for devices, found in times.items()}
    detail |= {f"seconds, static {what}, {STAGES} x {MICROBATCHES}": spread(found) for what, found in static.items()}
    return {"figures": figures, "detail": detail}


def _measure_growth(figures: dict[str, float], detail: dict[str, Any]) -> None:
    """Add how time grows with the length of a chain, and the memory of an event."""
    seconds = {n: median(interleaved({"": chain(DEVICES, n)}, 5)[""]) for n in SIZES}
    figures["growth_exponent"] = exponent(seconds)
    detail["bytes of an event that no view has asked for"], figures["bytes_per_event"] = bytes_per_event()
    detail["growth"] = [{"nodes": n, "microseconds per node": s / n * 1e6} for n, s in seconds.items()]


def _gangs(calls: int, rounds: int) -> tuple[dict[str, float], dict[str, Any]]:
    """Return figures and rates of gang operations, with those of SimPy where it is installed."""
    count = NODES * calls
    contenders: dict[str, Callable[[], object]] = {"controller": chain(DEVICES, NODES, calls)}
    if importlib.util.find_spec("simpy"):
        contenders["simpy"] = partial(simpy_operations, count)
    seconds = interleaved(contenders, rounds)
    figures = {"gang_ops_per_second": count / median(seconds["controller"])}
    if "simpy" in seconds:
        figures["gang_ops_over_simpy"] = ratio(seconds, "simpy", "controller")
    rates = {f"{name}, operations per second": spread([count / s for s in t]) for name, t in seconds.items()}
    return figures, rates


def chain(devices: int, nodes: int, calls: int = 1) -> Callable[[], None]:
    """Return a simulation of a chain of gangs over one island, lowered once before.

    Args:
        devices: of the island.
        nodes: gangs in the chain.
        calls: number of calls of the program.
    """
    pw.attach("sim", chip="tpu_v3", islands=1, devices_per_island=devices)
    gang = pw.work(LASTS, on=pw.virtual_slice(devices))

    def body(x: Any) -> Any:
        for _ in range(nodes):
            x = gang(x)
        return x

    program, start = pw.program(body, name=f"chain of {nodes}"), jax.ShapeDtypeStruct((), np.float32)

    def simulate() -> None:
        pw.wait([program(start) for _ in range(calls)])

    simulate()
    return simulate


def simpy_operations(count: int) -> float:
    """Return the simulated seconds of operations in SimPy: a process requests, holds and releases a resource.

    Args:
        count: number of operations.
    """
    import simpy

    def operate(world: Any, resource: Any) -> Any:
        for _ in range(count):
            request = resource.request()
            yield request
            yield world.timeout(LASTS)
            resource.release(request)

    world = simpy.Environment()
    world.process(operate(world, simpy.Resource(world)))
    world.run()
    return float(world.now)


def whole_simulation(devices: int) -> None:
    """Attach, trace, lower and simulate a program of two stages on the halves of an island.

    Args:
        devices: of the island.
    """
    with pw.attach("sim", chip="tpu_v3", islands=1, devices_per_island=devices):
        halves = [pw.virtual_slice(devices // 2) for _ in range(2)]
        stages = [
            pw.shard_map(lambda x, w: x @ w + jax.lax.psum(x[0, 0], "x"), on=half, in_specs=(pw.P("x"), pw.P()),
                         out_specs=pw.P("x"))
            for half in halves
        ]  # fmt: skip

        @pw.program
        def steps(x: Any, w: Any) -> Any:
            for i in range(STAGED):
                x = stages[i % 2](x, w)
            return x

        x, w = (jax.ShapeDtypeStruct((rows, 64), np.float32) for rows in (8 * devices, 64))
        steps.run(x, w)


def pipeline() -> float:
    """Return the makespan of GPipe's forward wave, from newly made arrays."""
    task = np.arange(STAGES * MICROBATCHES).reshape(STAGES, MICROBATCHES)
    return evaluate(np.full(task.size, LASTS), OrderEdges(task[:-1], task[1:], LASTS / 10), task).makespan


def wavefront() -> float:
    """Return the same from an array of ends, by anti-diagonals: what one who knows the pipeline's shape would write."""
    width, lag = MICROBATCHES + 1, LASTS / 10
    # A row and a column in front, for stages without one before them and microbatches without one before them.
    ends, durations = np.zeros((STAGES + 1, width)), np.full((STAGES + 1, width), LASTS)
    ends[0] = -np.inf
    end, lasting = ends.ravel(), durations.ravel()
    for diagonal in range(STAGES + MICROBATCHES - 1):
        first, last = max(0, diagonal - MICROBATCHES + 1), min(diagonal, STAGES - 1)
        start, stop = (stage * (width - 1) + width + diagonal + 1 for stage in (first, last + 1))
        at, above, before = (slice(start - back, stop - back, width - 1) for back in (0, width, 1))
        end[at] = np.maximum(end[above] + lag, end[before]) + lasting[at]
    return float(end[-1])


def running_maximum() -> float:
    """Return the same from one addition and one running maximum over as many numbers, the least that NumPy can do."""
    durations = np.full((STAGES, MICROBATCHES), LASTS)
    return float(np.maximum.accumulate(np.cumsum(durations, axis=1)).max())


def random_graph(devices: int, tasks: int) -> Callable[[], float]:
    """Return a function that evaluates tasks on random devices, each after a random earlier task.

    Args:
        devices: number of devices.
        tasks: on each device.
    """
    rng, count = np.random.default_rng(0), devices * tasks
    where = rng.permutation(np.repeat(np.arange(devices), tasks))
    orders = np.argsort(where, kind="stable").reshape(devices, tasks)
    target = np.arange(1, count)
    source = target - 1 - rng.integers(0, np.minimum(target, 100 * devices))
    durations, edges = rng.random(count), OrderEdges(source, target)
    return lambda: evaluate(durations, edges, orders).makespan


def bytes_per_event() -> tuple[float, float]:
    """Return the bytes of a recorded run per event: as events arrive, and after they have become columns."""
    simulate = chain(DEVICES, NODES, CALLS)
    tracemalloc.start()
    try:
        with pw.record("events") as recorded:
            simulate()
        gc.collect()
        # Until they are read, events are kept as they arrived; reading them makes columns.
        fresh = tracemalloc.get_traced_memory()[0]
        count = len(recorded.events)
        gc.collect()
        return fresh / count, tracemalloc.get_traced_memory()[0] / count
    finally:
        tracemalloc.stop()


def exponent(seconds: dict[int, float]) -> float:
    """Return the power with which seconds grow with sizes: the slope between their logarithms."""
    slope, _ = np.polyfit([math.log(n) for n in seconds], [math.log(s) for s in seconds.values()], 1)
    return float(slope)
