"""The text of ``%pathways status``: what a controller is doing and what it holds."""

from __future__ import annotations

import contextlib
import html
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from pathways_nb.controller.store import Buffer
from pathways_nb.controller.turns import ContendedTurns, shares_line
from pathways_nb.errors import size
from pathways_nb.plan.virtual_slice import by_serial
from pathways_nb.runtime.lowering.attachment import IslandDevice
from pathways_nb.session.session import Session
from pathways_nb.trace.metrics import duration
from pathways_nb.util.intervals import joined
from pathways_nb.util.words import counted

_LARGEST = 5
"""Lines about buffers, and about programs under way."""
_LONG = 2.0
"""Seconds after its call from which on a line tells of a program under way."""


def status_of(session: Session) -> str:
    """Return islands, devices, places, clients and the largest buffers, one item a line."""
    driver = session.driver
    if not driver.broken:
        driver.event_loop.in_turn(lambda: None)  # what was dropped just now is no longer held
    rows = [repr(session)]
    for island in driver.attachment.islands:
        devices = _ranges([device.id for device in island.devices])
        rows.append(f"  island {island.index}: {len(island.devices)} × {island.devices[0].device_kind}, "
                    f"ids {devices}{island.about}{_in_use(island.devices)}")  # fmt: skip
    rows += [f"  {driver.priced}"] if driver.priced else []
    rows += [_host(row) for row in driver.hosts()]
    rows += [f"  lost: {where}" for where in session.resources.lost]
    for serial, placement in sorted(session.resources.placements.items()):
        with contextlib.suppress(KeyError):  # a place that was let go just now
            rows.append(f"  place {by_serial(serial).label}: {placement}")
    rows += _clients(session)
    rows += _store(session)
    watched = "" if driver.quality == "simulated" else f"; {driver.sampled:.0%} of launches have their end measured"
    rows.append(f"  {counted(len(driver.runs), 'program')} under way{watched}")
    if driver.quality != "simulated":  # there, a program's seconds are not this process's
        rows += _long(session)
    return "\n".join(rows)


def _host(row: dict[str, Any]) -> str:
    """Return the line of a host: its devices, and how exact the times of its events are."""
    where = f"  host {row['host']} of island {row['island']}: {row['machine']}, process {row['process']}"
    clock = f"clock {row['clock_offset']:+.6f} s of this process's, known to {duration(row['clock_error'])}"
    return f"{where}, devices {_ranges(list(row['devices']))}; {clock}"


def as_html(status: str) -> str:
    """Return a status text as HTML: its first line as a heading, the others with their indentation."""
    first, _, rest = status.partition("\n")
    return f'<div><b>{html.escape(first)}</b><pre style="white-space: pre-wrap">{html.escape(rest)}</pre></div>'


def _ranges(numbers: Sequence[int]) -> str:
    """Return numbers as text such as ``0–3, 8, 9``: runs of three or more by their ends."""
    rows = joined((number, number + 1) for number in numbers)
    return ", ".join(f"{a}–{b - 1}" if b - a > 2 else ", ".join(map(str, range(a, b))) for a, b in rows)


def _clients(session: Session) -> Iterator[str]:
    for name, state in session.machine.clients.copy().items():
        if name:
            limit = f", at most {size(state.memory)} per device" if state.memory else ""
            had = f"{counted(state.unfinished, 'program')} under way, {state.seconds:.3g} device-seconds so far"
            yield f"  client {name}: share {state.share:g}, priority {state.priority:g}{limit}; {had}"
    if line := shares_line(turns_of(session), session.is_shared):
        yield f"  clients {line}"


def turns_of(session: Session) -> dict[str, ContendedTurns]:
    """Return a copy of the turns of all clients that competed; none under a policy that reads no shares."""
    return {name: replace(one) for name, one in session.machine.promised.copy().items()}


def _long(session: Session) -> Iterator[str]:
    """Yield the lines of programs that were called a while ago, oldest first: where they are, and for how long."""
    driver, now = session.driver, time.perf_counter()
    # A copy, since the event loop goes on meanwhile.
    long = [call for call in list(driver.runs.values()) if now - call.called >= _LONG and 0 in call.done]
    begun = session.machine.begun if long else frozenset()
    for call in sorted(long, key=lambda call: call.asked)[:_LARGEST]:
        plan = call.compiled_plan.plan
        left = [step for step, done in enumerate(call.done) if not done]
        # Hosts tell of the arguments that came when all of a range has ended, so a computation is named first.
        step = next((step for step in left if plan.steps[step].kind in ("launch", "host")), left[0] if left else 0)
        label = call.compiled_plan.actions[step].label
        line, of = f" ({label.line})" if label.line else "", f" of {call.client}" if call.client else ""
        state = "running" if call.serial in begun else "waiting"
        yield (
            f"    {call.compiled_plan.name}{of}: {state} for {duration(now - call.called)}; {label.name}{line} on "
            f"{plan.placements[plan.steps[step].place]} has not ended"
        )


def _store(session: Session) -> Iterator[str]:
    """Yield the lines on the object store: its size, each island's fullest device, and the largest buffers."""
    buffers = list(session.machine.store.buffers.values())  # a copy: the event loop goes on meanwhile
    yield f"  object store: {counted(len(buffers), 'buffer')}, {size(sum(entry.bytes for entry in buffers))} logical"
    for number, island in enumerate(list(session.machine.memory.islands)):
        of, most = f" of {size(island.budget)}" if island.budget else "", max(island.totals)
        others = f", and {island.others_text}" if island.others_text else ""
        if island.budget or most:
            yield f"    island {number}: {size(most)}{of} on its fullest device{others}"
    for entry in sorted(buffers, key=lambda entry: -entry.bytes)[:_LARGEST]:
        if entry.bytes:
            yield f"    {_holder(entry)}"


def _holder(entry: Buffer) -> str:
    where = entry.allocation
    location = f", {size(where.bytes)} on each of {where.placement}" if where is not None else ""
    return f"{entry.name or 'argument'}{f' of {entry.owner}' if entry.owner else ''}: {size(entry.bytes)}{location}"


def _in_use(devices: Sequence[IslandDevice]) -> str:
    """Return the memory in use and its limit as text; empty on devices that do not report it (CPU, some proxies)."""
    try:
        stats = [device.memory_stats() or {} for device in devices]
    except Exception as error:  # a backend may refuse to answer, which is no reason to refuse a status
        return f", memory in use unknown ({type(error).__name__}: {error})"
    used = sum(s.get("bytes_in_use", 0) for s in stats)
    limit = sum(s.get("bytes_limit", 0) for s in stats)
    return f", {size(used)} of {size(limit)} in use" if limit else ""
