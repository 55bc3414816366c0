"""One controller, two drivers: random programs on real devices and on simulated ones come to the same.

The same events happen, of the same nodes, on the same islands, for the same clients. And where the policy's choice does
not depend on how long things take, each island is given its gangs in the same order, if devices are held busy until
all programs have been called.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.controller import admission, state
from pathways_nb.controller.events_and_instructions import Launch
from pathways_nb.runtime.local.local_driver import LocalDriver
from pathways_nb.runtime.sim.sim_driver import SimDriver
from tests.jax.simulation.random_programs import (
    COMPUTATIONS,
    PLACES,
    Call,
    call_all,
    place_all,
    random_calls,
    random_program,
    v,
)

CLIENTS = ("", "ann", "bob", "eve")
some = settings(max_examples=8, phases=[Phase.generate])
seeds = st.integers(0, 10**9)


@pytest.fixture(autouse=True)
def long_gangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """A gang is taken to last so long that two of them fill an island."""
    monkeypatch.setattr(state, "GUESS", 1.0)


class Gate:
    """Holds back what the controller launches until it is opened, and remembers it."""

    def __init__(self, controller: pw.Controller):
        self.controller, self.driver = controller, controller.driver
        self.launches: list[Launch] = []
        self._carry_out = self.driver._launch
        self._held: list[tuple[Any, Launch, Any]] | None = []
        self.driver._launch = self._hold  # type: ignore[method-assign]

    def _hold(self, run: Any, launch: Launch, cause: Any) -> None:
        self.launches.append(launch)
        if self._held is None:
            self._carry_out(run, launch, cause)
        else:
            self._held.append((run, launch, cause))

    def open(self) -> None:
        """All has been called: let it happen."""
        self.driver.event_loop.in_turn(self._release)

    def _release(self) -> None:
        held, self._held = self._held or [], None
        for run, launch, cause in held:
            self._carry_out(run, launch, cause)

    def orders(self) -> dict[int, list[tuple[int, int]]]:
        """By island: what it was given, as (number of the call, position in its order there).

        How many gangs of a program go out in one message is a matter of who else is there, hence of time.
        """
        self.driver._launch = self._carry_out  # type: ignore[method-assign]
        first = min(launch.run for launch in self.launches)
        found: dict[int, list[tuple[int, int]]] = {}
        for launch in self.launches:
            given = [(launch.run - first, position) for position in range(launch.start, launch.stop)]
            found.setdefault(launch.island, []).extend(given)
        return found


def carried_out(controller: pw.Controller, programs: list[Any], calls: list[Call]) -> tuple[Counter[Any], Any, Any]:
    """What happened on devices, in which order each island was given its gangs, and how each result ended."""
    place_all(controller)
    tenants = {name: pw.client(name, priority=at) for at, name in enumerate(CLIENTS) if name}
    with pw.record() as run:
        for program in programs:  # lowered: no call waits for that
            program.peaks(v, v)
        gate = Gate(controller)
        keep_busy(controller)
        results = call_all(programs, calls, {name: tenant.acting for name, tenant in tenants.items()})
        gate.open()
    ends = [_end_of(future) for made in results for future in made]
    for tenant in tenants.values():
        tenant.close()
    return happened(run), gate.orders(), ends


def keep_busy(controller: pw.Controller) -> None:
    """Enqueue so much on each island that nothing more goes out before some of it has ended."""
    for computation in (COMPUTATIONS[place][2] for place in PLACES[:2] * 2):
        computation(v)
        controller.flush()
    controller.driver.event_loop.in_turn(lambda: None)


def _end_of(future: pw.Future) -> str:
    try:
        future.wait()
    except pw.PathwaysError as error:
        return type(error).__name__
    return "there"


def happened(run: pw.Run) -> Counter[Any]:
    """How often each node was carried out, or each value was moved, where and for whom."""
    columns = ("kind", "program", "name", "node", "island", "device", "devices", "client", "parents", "bytes", "status")
    events = run.events.of_kind("compute", "transfer", "collective")
    return Counter(zip(*(events[column].tolist() for column in columns), strict=True))


def both(seed: int, clients: list[tuple[str, ...]], islands: list[tuple[int, ...]], count: int, **options: Any) -> Any:
    """What real and simulated devices make of the same calls; ``clients`` and ``islands`` are those of each program."""
    rng = random.Random(seed)
    programs = [random_program(rng, f"p{number}", where) for number, where in enumerate(islands)]
    calls = random_calls(rng, programs, clients, count)
    found = []
    for kind, chip in (("cpu", None), ("sim", "tpu_v5e")):
        with pw.attach(kind, islands=2, devices_per_island=2, chip=chip, **options) as controller:
            found.append(carried_out(controller, programs, calls))
    return found


@some
@given(seeds)
def test_the_same_happens_on_real_and_on_simulated_devices(watchdog: None, seed: int) -> None:
    (real, _, ends), (simulated, _, simulated_ends) = both(seed, [CLIENTS] * 3, [(0, 1)] * 3, 10)
    assert simulated == real
    assert simulated_ends == ends


@pytest.mark.parametrize("policy", ["fifo", "priority"])
@some
@given(seeds)
def test_one_gang_after_another_goes_out_in_the_same_order(watchdog: None, policy: str, seed: int) -> None:
    real, simulated = both(seed, [CLIENTS] * 3, [(0, 1)] * 3, 10, dispatch="sequential", policy=policy)
    assert simulated == real


@pytest.mark.parametrize("policy", ["fifo", "priority"])
@some
@given(seeds)
def test_each_island_is_given_its_gangs_in_the_same_order(watchdog: None, policy: str, seed: int) -> None:
    """Each client has one island and waits for no other: else it is a matter of time when something may go out."""
    clients: list[tuple[str, ...]] = [("ann",), ("bob",), ("eve",), ("",)]
    real, simulated = both(seed, clients, [(0,), (1,), (0,), (1,)], 30, policy=policy)
    assert simulated == real


@some
@given(seeds)
def test_one_client_alone_has_its_programs_in_the_order_of_its_calls(watchdog: None, seed: int) -> None:
    real, simulated = both(seed, [("",)] * 3, [(0, 1)] * 3, 12)
    assert simulated == real


@some
@given(seeds)
def test_programs_wait_alike_for_memory(watchdog: None, monkeypatch: pytest.MonkeyPatch, seed: int) -> None:
    """With the footprints that the compiler tells: those that find none, and fail, are the same.

    The order is not compared: which island gives memory back first, and so who may pass whom, is a matter of time.
    """
    needs = feed_footprints(monkeypatch)
    monkeypatch.setattr(admission, "PATIENCE", 0.02)
    monkeypatch.setattr(admission, "PATIENCE_WITH_OTHERS", 0.02)
    (real, _, ends), (simulated, _, simulated_ends) = both(
        seed, [("ann",), ("bob",), ("",)], [(0, 1)] * 3, 10, dispatch="sequential", policy="fifo", hbm=HBM
    )
    assert simulated == real
    assert simulated_ends == ends
    assert needs


HBM = 260
"""Bytes of each device: enough for any of the programs, not for what all calls leave there."""


def feed_footprints(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """Simulated devices are told what real ones need, program by program and layout by layout."""
    needs: dict[str, list[Any]] = defaultdict(list)
    fed = Counter[str]()
    real, simulated = LocalDriver.lower, SimDriver.lower

    def lower_real(self: Any, traced: Any, *rest: Any) -> Any:
        lowered = real(self, traced, *rest)
        needs[traced.name].append(lowered.footprint)
        return lowered

    def lower_simulated(self: Any, traced: Any, *rest: Any) -> Any:
        lowered = simulated(self, traced, *rest)
        fed[traced.name] += 1
        return replace(lowered, footprint=needs[traced.name][fed[traced.name] - 1])

    monkeypatch.setattr(LocalDriver, "lower", lower_real)
    monkeypatch.setattr(SimDriver, "lower", lower_simulated)
    return needs
