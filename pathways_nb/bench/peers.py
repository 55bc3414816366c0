"""Peers of the dispatch bench, where they are installed: the same chain in Ray and in Dask, each at its most pipelined.

A computation is, on each of some workers, the sum of one number from every worker, plus one: no arrays and no JAX, so
that what is measured is the time of the engine itself. Nothing waits before the end of the chain.
"""

from __future__ import annotations

import contextlib
import importlib.util
import itertools
import os
from collections.abc import Callable, Iterator
from typing import Any

CountedCalls = Callable[[int], object]
"""A function that runs the given number of computations, each after the one before."""


def _step(*shards: float) -> float:
    return sum(shards) + 1.0


@contextlib.contextmanager
def with_ray(workers: int) -> Iterator[CountedCalls]:
    """Yield a chain in Ray: an actor for each worker, whose calls take the references that earlier calls returned."""
    # Ray's usage report is on by default.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    import ray

    try:
        ray.init(num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR",
                 _node_ip_address="127.0.0.1", object_store_memory=256 << 20)  # fmt: skip
        worker = ray.remote(num_cpus=0)(type("Worker", (), {"step": staticmethod(_step)}))
        actors = [worker.remote() for _ in range(workers)]

        def chain(count: int) -> object:
            """Return the shards after ``count`` computations."""
            shards: list[Any] = [1.0] * workers
            for _ in range(count):
                shards = [actor.step.remote(*shards) for actor in actors]
            return ray.get(shards)

        yield chain
    finally:
        ray.shutdown()


@contextlib.contextmanager
def with_dask(workers: int) -> Iterator[CountedCalls]:
    """Yield a chain in Dask: one worker thread each, in this process, and the whole chain as one graph.

    One graph is faster than a submission for each task.
    """
    from distributed import Client, LocalCluster

    serials = itertools.count()
    with (
        LocalCluster(n_workers=workers, threads_per_worker=1, processes=False, dashboard_address=None) as cluster,
        Client(cluster) as client,
    ):

        def chain(count: int) -> object:
            # New keys for every run: Dask would return the results it still has for keys that it knows.
            """Return the shards after ``count`` computations."""
            run = next(serials)
            graph: dict[Any, Any] = {(f"chain-{run}", 0, worker): 1.0 for worker in range(workers)}
            for i in range(count):
                shards = [(f"chain-{run}", i, worker) for worker in range(workers)]
                graph |= {(f"chain-{run}", i + 1, worker): (_step, *shards) for worker in range(workers)}
            return client.get(graph, [(f"chain-{run}", count, worker) for worker in range(workers)])

        yield chain


def installed() -> dict[str, Callable[[int], contextlib.AbstractContextManager[CountedCalls]]]:
    """Return the peers that can be imported, by name."""
    modules = {"ray": ("ray", with_ray), "dask": ("distributed", with_dask)}
    return {name: start for name, (module, start) in modules.items() if importlib.util.find_spec(module)}
