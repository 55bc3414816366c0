"""Takes what hosts report of a driver's runs: results that are there, steps that failed, and events for the record."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any

from pathways_nb.controller.events_and_instructions import Voided
from pathways_nb.errors import LostError
from pathways_nb.runtime.cluster.host_events import RangeLost
from pathways_nb.runtime.cluster.host_island import HostIsland
from pathways_nb.runtime.cluster.remote_array import remote_array
from pathways_nb.runtime.cluster.run_ledger import RunOnHosts
from pathways_nb.runtime.event_loop import EventLoop
from pathways_nb.runtime.hosts import reports
from pathways_nb.runtime.hosts.portable_plan import located
from pathways_nb.runtime.run_state import RunState
from pathways_nb.trace.rows import BY, Label, Row, label_of
from pathways_nb.util.waiting import Condition


@dataclass(eq=False)
class RunReports:
    """The runs of a driver, and what hosts report of them.

    Args:
        islands: returns the islands; some may come later.
        event_loop: is told of results that will never be there.
        ended: notified when a result is there.
    """

    islands: Callable[[], Sequence[HostIsland]]
    event_loop: EventLoop
    ended: Condition
    runs: dict[int, RunOnHosts] = field(default_factory=dict)
    """Those that have not ended, by number."""

    def receive(self, island: int, report: reports.Report | RangeLost) -> None:
        """Take a host's report about a run."""
        state = None if isinstance(report, reports.Broken) else self.runs.get(report.run)
        if state is None:
            return
        hosts = len(self.islands()[island].links)
        match report:
            case reports.StepRows(_, rows):
                self._record_steps(state.run, island, rows)
            case reports.HostRow():
                self._record_host(state, island, report)
            case reports.OtherRow(_, row):
                state.run.record.add(row._replace(label=state.run.own(row.label), run=state.run.serial))
            case reports.StepEnded(_, step, value):
                if state.step_ended(step, hosts, value) and step not in state.run.errors:
                    self._fill(state.run, step, state.values.pop(step, None))
            case reports.StepFailed(_, step, error):
                state.fail(step, error)
            case reports.RangeEnded(_, start, stop, _):
                state.range_ended(island, start, stop, hosts)
                if state.run.errors:
                    self.event_loop.report(Voided(state.run.failed_results()))
            case RangeLost(_, _, start, stop, why):
                self._lose(state, state.run.compiled_plan.plan.orders[island][start:stop], why)

    def lose_island(self, island: int, generation: int, why: str) -> None:
        """Fail what needs an island whose hosts died in this life of it."""
        for state in list(self.runs.values()):
            if state.generations[island] == generation:
                self._lose(state, tuple(state.lost_with(island)), why)

    def _lose(self, state: RunOnHosts, steps: Sequence[int], why: str) -> None:
        """Fail steps of a run, with all that depends on them."""
        kinds = state.run.compiled_plan.plan.steps
        for step in sorted(steps, key=lambda step: kinds[step].kind != "launch"):  # what failed is told of nodes
            state.fail(step, state.run.node_error(step, LostError(why)))
        if steps:
            self.event_loop.post(Voided(state.run.failed_results()))

    def _fill(self, run: RunState, step: int, value: Any) -> None:
        """Note that a step that makes results has ended on all hosts."""
        plan, avals = run.compiled_plan.plan, run.compiled_plan.result_avals
        arrays: list[Any] = []
        for slot in plan.steps[step].outputs:
            buffers = [b for b, s in zip(run.buffers, plan.results, strict=True) if s == slot]
            there, entries = located(run.compiled_plan, slot), run.results.get(slot, ())
            island = self.islands()[there.where.island]
            arrays.append(
                [
                    remote_array(avals[slot], there, island, buffer, value)
                    for buffer, _ in zip(buffers, entries, strict=True)
                ]
            )
        run.fill(step, [mine[0] if mine else None for mine in arrays])
        for slot, mine in zip(plan.steps[step].outputs, arrays, strict=True):
            for entry, array in zip(run.results.get(slot, ()), mine, strict=True):
                entry.array = array  # each is of its own buffer, which may be dropped before the others
        run.mark_done(step)
        self.ended.notify_all()

    def _record_host(self, state: RunOnHosts, island: int, report: reports.HostRow) -> None:
        run, cause = state.run, None if report.why < 0 else BY[report.why]
        name, route = run.compiled_plan.name, "" if report.kind == "enqueue" else "DCN"
        if route:
            cause = state.cause(island, report.device)
        what = f"message to island {island} on its way" if route else name
        host = self.islands()[island].host_of(report.device)
        label = label_of(report.kind, what, name, run.client, island=island, route=route, host=host)
        quality = "estimated" if route else "exact"
        run.record.add(Row(label, report.start, report.end, run.serial, quality, cause=cause))

    def _record_steps(self, run: RunState, island: int, rows: Sequence[reports.StepRow]) -> None:
        actions, client, serial, there = run.compiled_plan.actions, run.client, run.serial, self.islands()[island]
        for step, start, end, quality, status, device, devices, route, size, why in rows:
            host = there.host_of(device)
            run.recorded[step] = label = _on_host(actions[step].label, client, device, devices, route, size, host)
            cause = None if why < 0 else BY[why]
            run.record.add(Row._make((label, start, end, serial, quality, status, cause)))  # half the time of Row(…)


@lru_cache(maxsize=16384)
def _on_host(label: Label, client: str, device: int, devices: int, route: str, size: int, host: int) -> Label:
    """Return the label of what happened on one host: its devices, and their part of the bytes and flops."""
    part = devices / label.devices if label.devices else 1.0
    differs: dict[str, Any] = {"client": client, "device": device, "devices": devices, "host": host}
    differs |= {"bytes": int(label.bytes * part), "flops": label.flops * part}
    if route:
        differs |= {"route": route, **({"bytes": size} if size else {})}
    return replace(label, **differs)
