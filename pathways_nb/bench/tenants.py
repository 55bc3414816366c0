"""Tenants: accuracy of shares of device time, and throughput of several clients (Pathways, Figures 8, 9 and 11).

Clients are threads that always have programs of one computation waiting, since a share means something only under
contention. Device time is taken from the record, counted over windows of consecutive gangs, the worst of which is
reported: an average over the run would hide a client that starved at first and caught up later.
"""

from __future__ import annotations

import gc
import threading
import time
from statistics import median
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import pathways_nb as pw
from pathways_nb.session.session import Session
from pathways_nb.trace.record import Events, Record

DEVICES, SECONDS, DEPTH, WINDOW, TURNS = 4, 3.0, 32, 400, 3
"""Devices, seconds of a measurement, calls outstanding of each client, gangs in a window, and turns."""
ROUNDS = {"smallest": 1, "small": 10, "medium": 40, "large": 160}
"""Matrix products in each computation."""
COUNTS = (1, 2, 4, 8)
"""Numbers of clients."""
PATIENCE = 4
"""Longest duration of a measurement on a machine too busy for enough gangs, as a multiple of the usual one."""
_KEPT = 0.7
"""Share of the gangs that count: those of the middle."""


def run() -> dict[str, Any]:
    """Return the errors of shares at the medium size, and rates and utilisation of 1, 2, 4 and 8 clients at every size.

    On a machine too busy for a window of gangs a figure is left out, and the detail says how many gangs there were.
    """
    controller = pw.attach("cpu", islands=1, devices_per_island=DEVICES, policy="stride")
    place = pw.virtual_slice(DEVICES)
    programs = {size: products(place, rounds) for size, rounds in ROUNDS.items()}
    figures: dict[str, float] = {}
    detail: dict[str, Any] = {}
    for shares in ((1, 1, 1, 1), (1, 2, 4, 8)):
        events = compete(controller, place, programs["medium"], shares, 2 * SECONDS, least=2 * WINDOW)
        name = "_".join(map(str, shares))
        if (worst := worst_error(events, shares)) is not None:
            figures[f"worst_share_error_{name}"] = worst
        detail[f"asked {name}, got"] = got(events, shares) or "nothing that took time"
        detail[f"asked {name}, gangs"] = f"{len(events)}, in windows of {WINDOW}"
    rows: list[dict[str, Any]] = []
    for size, program in programs.items():
        rates: dict[int, list[Rate]] = {count: [] for count in COUNTS}
        # Numbers of clients take turns, so that a change of the machine's load affects all of them.
        for _ in range(TURNS):
            for count in COUNTS:
                events = compete(controller, place, program, (1,) * count, SECONDS / 2, least=10)
                rates[count] += rate(events)
        rows.append({"size": size} | medians(rates))
    for name, row, column in (
        ("aggregate_4_over_1_smallest", rows[0], "per second"),
        ("utilisation_4_over_1", rows[2], "utilisation"),
    ):
        one, four = (row.get(f"{count} clients, {column}") for count in (1, 4))
        if one and four is not None:
            figures[name] = four / one
    return {"figures": figures, "detail": detail | {"sizes": rows}}


def products(place: pw.VirtualSlice, rounds: int) -> pw.Program:
    """Return a program of one computation of so many matrix products."""
    work = pw.jit(
        lambda m: jax.lax.fori_loop(0, rounds, lambda i, x: jnp.tanh(x @ x), m),
        on=place, in_shardings=pw.P("x"), out_shardings=pw.P("x"),
    )  # fmt: skip
    return pw.program(lambda m: work(m), name=f"{rounds} products")


def compete(
    controller: Session,
    place: pw.VirtualSlice,
    program: pw.Program,
    shares: tuple[int, ...],
    seconds: float,
    least: int,
) -> Events:
    """Return the gangs that ran while all clients had programs waiting.

    Args:
        controller: whose record the gangs are read from.
        place: where the programs run.
        program: called by all clients.
        shares: of each client.
        seconds: length of the measurement.
        least: gangs to keep; on a busy machine the measurement lasts longer, up to ``PATIENCE`` times.
    """
    value = pw.put(np.full((64, 64), 0.01, np.float32), on=place, shardings=pw.P("x"))
    program(value).wait()
    gc.collect()  # a full collection in the midst, of 70 ms, would be the device time of one client's gang
    controller.record = Record()
    over, ready = threading.Event(), threading.Barrier(len(shares) + 1)

    def work(name: str, share: float) -> None:
        """Call the program all the time for one client, with ``DEPTH`` calls outstanding."""
        with pw.client(name, share=share):
            ready.wait()
            waiting = [program(value) for _ in range(DEPTH)]
            while not over.is_set():
                waiting.append(program(value))
                waiting.pop(0).wait()
            pw.wait(waiting)

    threads = [threading.Thread(target=work, args=(f"client {i}", share)) for i, share in enumerate(shares)]
    for thread in threads:
        thread.start()
    ready.wait()
    over.wait(seconds)
    most = time.monotonic() + PATIENCE * seconds
    while _KEPT * len(controller.record.events().of_kind("compute")) < least and time.monotonic() < most:
        over.wait(seconds / 4)
    over.set()
    for thread in threads:
        thread.join()
    events = controller.record.events().of_kind("compute")
    controller.record = Record(limit=1)
    # At the beginning and at the end some clients have no programs waiting.
    cut = int(len(events) * (1 - _KEPT) / 2)
    first, last = cut, len(events) - cut
    return events.select(np.argsort(events["end"], kind="stable")[first:last])


def _parts(events: Events, shares: tuple[int, ...]) -> np.ndarray:
    """Return the device time of each client (rows) at each event (columns)."""
    lasts = events["end"] - events["start"]
    return np.stack([lasts * events.is_("client", f"client {i}") for i in range(len(shares))])


def got(events: Events, shares: tuple[int, ...]) -> list[float]:
    """Return the device time of each client, in units that add up to ``sum(shares)``; empty if there was none."""
    total = _parts(events, shares).sum(1)
    return (total / total.sum() * sum(shares)).round(4).tolist() if total.any() else []


def worst_error(events: Events, shares: tuple[int, ...], window: int = WINDOW) -> float | None:
    """Return the largest relative error of any client's share in any window of consecutive gangs.

    A client without a gang in a window has an error of 1 in it. Windows whose gangs took no time have no shares.

    Args:
        events: gangs in the order of their ends.
        shares: of each client.
        window: gangs in a window.

    Returns:
        The error; None where there are fewer gangs than a window has, so that nothing can be said.
    """
    if len(events) < window:
        return None
    sums = np.cumsum(np.pad(_parts(events, shares), ((0, 0), (1, 0))), axis=1)
    within = sums[:, window:] - sums[:, :-window]
    within = within[:, within.sum(0) > 0]
    wanted = np.array(shares)[:, None] / sum(shares)
    return float(np.abs(within / within.sum(0) / wanted - 1).max()) if within.size else None


class Rate(NamedTuple):
    """Gangs per second, and the part of the time in which the devices worked."""

    per_second: float
    utilisation: float


def rate(events: Events) -> list[Rate]:
    """Return the rate of one turn, as a list of one; empty if no gang ended in it, or all ended at once."""
    lasted = float(events["end"].max() - events["start"].min()) if len(events) else 0.0
    if not lasted:
        return []
    return [Rate(len(events) / lasted, float((events["end"] - events["start"]).sum()) / lasted)]


def medians(rates: dict[int, list[Rate]]) -> dict[str, float]:
    """Return the medians over turns, by column of the table, without numbers of clients that no turn measured."""
    known = {count: turns for count, turns in rates.items() if turns}
    return {f"{count} clients, per second": median(t.per_second for t in turns) for count, turns in known.items()} | {
        f"{count} clients, utilisation": median(t.utilisation for t in turns) for count, turns in known.items()
    }
