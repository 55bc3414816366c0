"""What ``bench cluster`` does with hosts: count their messages, send arrays between them, and kill one."""

from __future__ import annotations

import importlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp

import pathways_nb as pw
from pathways_nb.bench.stopwatch import interleaved
from pathways_nb.errors import LostError, NodeError

_LONGEST = 120.0
"""Seconds to wait at most for an island to be lost, and to come back."""


@contextmanager
def counted_messages(controller: pw.Controller) -> Iterator[Callable[[], int]]:
    """Count the messages to hosts inside the block.

    Yields:
        A function that returns their number so far.
    """
    links = [link for island in _islands(controller) for link in island.links]
    count = 0

    def counted(post: Callable[[bytes], None]) -> Callable[[bytes], None]:
        def posted(messages: bytes) -> None:
            nonlocal count
            count += 1
            post(messages)

        return posted

    for link in links:
        link.post = counted(link.post)
    try:
        yield lambda: count
    finally:
        for link in links:
            del link.post


def transfer_rate(source: pw.VirtualSlice, target: pw.VirtualSlice, megabytes: int, rounds: int) -> float:
    """Return the gigabytes per second at which an array goes from one island to another.

    The program at the other end reads one number of it. The seconds that it takes with a single number are taken off.

    Args:
        source: where the array lies.
        target: where it goes.
        megabytes: size of the array, of 2**20 bytes.
        rounds: number of transfers.
    """
    values = {"array": jnp.zeros((megabytes << 20) // 4, jnp.float32), "number": jnp.float32(0)}
    held = {name: pw.put(value, on=source) for name, value in values.items()}
    first = pw.jit(lambda x: x.ravel()[0], on=target)
    programs = {name: pw.program(lambda x: first(x), name=f"move the {name}") for name in values}
    moves = {name: (lambda name=name: programs[name](held[name]).wait()) for name in values}
    interleaved(moves, 1)  # compile
    seconds = interleaved(moves, rounds)
    took = median(max(a - b, 1e-9) for a, b in zip(seconds["array"], seconds["number"], strict=True))
    return (megabytes << 20) / 1e9 / took


def killed(controller: pw.Controller, place: pw.VirtualSlice) -> tuple[float, float]:
    """Kill the first host of a place's island.

    Returns:
        Seconds until it was noticed, and from then until a program ran there again.
    """
    again = pw.program(pw.jit(lambda x: x + 1.0, on=place), name="again")
    again(1.0).wait()
    island = _islands(controller)[controller.located(place)[0].island]
    generation, began = island.generation, time.perf_counter()
    os.kill(island.links[0].facts.process, signal.SIGKILL)
    _until(lambda: bool(island.lost) or island.generation > generation)
    noticed = time.perf_counter()
    _until(lambda: island.generation > generation and not island.lost)
    controller.driver.wait_for_devices()
    again(1.0).wait()
    return noticed - began, time.perf_counter() - noticed


def failed_after(place: pw.VirtualSlice, fault: Callable[[], None]) -> float:
    """Return the seconds from a fault until a program that was under way fails with it."""
    endless = pw.jit(lambda x, n: jax.lax.fori_loop(0, n, lambda _, y: y * 0.5 + 1.0, x), on=place)
    float(endless(jnp.float32(1.0), 1))
    under_way, began = endless(jnp.float32(1.0), 2**31 - 1), time.perf_counter()
    fault()
    with suppress(LostError, NodeError):
        under_way.wait()
    return time.perf_counter() - began


def stop_host(controller: pw.Controller, place: pw.VirtualSlice) -> None:
    """Stop the first host of a place's island; it stays as it is until it is killed."""
    island = _islands(controller)[controller.located(place)[0].island]
    os.kill(island.links[0].facts.process, signal.SIGSTOP)


def kill_gcs() -> None:
    """Kill the GCS of the cluster that this process has made."""
    node: Any = importlib.import_module("ray._private.worker")._global_node
    node.all_processes["gcs_server"][0].process.kill()


def _islands(controller: pw.Controller) -> Any:
    return controller.driver.attachment.islands


def _until(is_so: Callable[[], bool]) -> None:
    """Wait for a condition.

    Raises:
        TimeoutError: it took too long.
    """
    end = time.perf_counter() + _LONGEST
    while not is_so():
        if time.perf_counter() > end:
            raise TimeoutError(f"no change of the island's hosts after {_LONGEST:g} s")
        time.sleep(1e-3)
