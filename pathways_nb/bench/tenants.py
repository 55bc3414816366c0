"""Tenants: are shares of device time kept, and what do several clients cost together (Pathways, Figures 8, 9 and 11)?

Clients are threads that always have programs of one computation waiting. Device time is what the record says, counted
over windows of consecutive gangs, the worst of which is reported.
"""

from __future__ import annotations

import threading
from statistics import median
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pathways_nb as pw
from pathways_nb.trace.record import Events, Record

DEVICES, SECONDS, DEPTH, WINDOW, TURNS = 4, 3.0, 32, 400, 3
ROUNDS = {"smallest": 1, "small": 10, "medium": 40, "large": 160}
"""Matrix products in each computation."""
COUNTS = (1, 2, 4, 8)


def run() -> dict[str, Any]:
    """Measure shares at the medium size, and throughput and utilisation of 1, 2, 4 and 8 clients at every size."""
    controller = pw.attach("cpu", islands=1, devices_per_island=DEVICES, policy="stride")
    place = pw.virtual_slice(DEVICES)
    programs = {size: _program(place, rounds) for size, rounds in ROUNDS.items()}
    figures: dict[str, float] = {}
    detail: dict[str, Any] = {}
    for shares in ((1, 1, 1, 1), (1, 2, 4, 8)):
        events = _compete(controller, place, programs["medium"], shares, 2 * SECONDS)
        name = "_".join(map(str, shares))
        figures[f"worst_share_error_{name}"] = _worst(events, shares)
        detail[f"asked {name}, got"] = _got(events, shares).round(4).tolist()
    rows: list[dict[str, Any]] = []
    for size, program in programs.items():
        per_second: dict[int, list[float]] = {count: [] for count in COUNTS}
        utilised: dict[int, list[float]] = {count: [] for count in COUNTS}
        for _ in range(TURNS):
            for count in COUNTS:
                events = _compete(controller, place, program, (1,) * count, SECONDS / 2)
                lasted = float(events["end"].max() - events["start"].min())
                per_second[count].append(len(events) / lasted)
                utilised[count].append(float((events["end"] - events["start"]).sum()) / lasted)
        rows.append(
            {"size": size}
            | {f"{count} clients, per second": median(per_second[count]) for count in COUNTS}
            | {f"{count} clients, utilisation": median(utilised[count]) for count in COUNTS}
        )
    figures["aggregate_4_over_1_smallest"] = rows[0]["4 clients, per second"] / rows[0]["1 clients, per second"]
    figures["utilisation_4_over_1"] = rows[2]["4 clients, utilisation"] / rows[2]["1 clients, utilisation"]
    return {"figures": figures, "detail": detail | {"sizes": rows}}


def _program(place: pw.VirtualSlice, rounds: int) -> pw.Program:
    work = pw.jit(
        lambda m: jax.lax.fori_loop(0, rounds, lambda i, x: jnp.tanh(x @ x), m),
        on=place, in_shardings=pw.P("x"), out_shardings=pw.P("x"),
    )  # fmt: skip
    return pw.program(lambda m: work(m), name=f"{rounds} products")


def _compete(
    controller: pw.Controller, place: pw.VirtualSlice, program: pw.Program, shares: tuple[int, ...], seconds: float
) -> Events:
    """What ran while all clients had programs waiting."""
    value = pw.put(np.full((64, 64), 0.01, np.float32), on=place, shardings=pw.P("x"))
    program(value).wait()
    controller.record = Record()
    over, ready = threading.Event(), threading.Barrier(len(shares) + 1)

    def work(name: str, share: float) -> None:
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
    over.set()
    for thread in threads:
        thread.join()
    events = controller.record.events().of_kind("compute")
    controller.record = Record(limit=1)
    first, last = (int(len(events) * part) for part in (0.15, 0.85))  # neither the beginning nor the end
    return events.select(np.argsort(events["end"], kind="stable")[first:last])


def _parts(events: Events, shares: tuple[int, ...]) -> np.ndarray:
    """Device time of each client (rows) at each event."""
    lasts = events["end"] - events["start"]
    return np.stack([lasts * events.is_("client", f"client {i}") for i in range(len(shares))])


def _got(events: Events, shares: tuple[int, ...]) -> np.ndarray:
    total = _parts(events, shares).sum(1)
    return total / total.sum() * sum(shares)


def _worst(events: Events, shares: tuple[int, ...]) -> float:
    """The largest relative error of any client's share in any window."""
    sums = np.cumsum(_parts(events, shares), axis=1)
    within = sums[:, WINDOW:] - sums[:, :-WINDOW]
    wanted = np.array(shares)[:, None] / sum(shares)
    return float(np.abs(within / within.sum(0) / wanted - 1).max())
