"""Simulated time, beside closed forms: chains, shares, budgets, policies; the same calls give the same trace."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.timing.event_queue import EventQueue
from tests.jax.simulation.random_programs import random_calls, random_program
from tests.jax.simulation.test_drivers_agree import carried_out
from tests.support.simulated import NO_HOSTS, X, a, both, is_empty

WHOLE = pw.virtual_slice(4)
few = settings(max_examples=15)


def attached(**options: Any) -> pw.Controller:
    """One island of four devices, whose hosts take no time."""
    return pw.attach("sim", chip=NO_HOSTS, islands=1, devices_per_island=4, **options)


def chain(stages: int, seconds: float) -> pw.Program:
    works = [pw.work(seconds, on=WHOLE, name=f"stage{i}") for i in range(stages)]

    def body(x: Any) -> Any:
        for work in works:
            x = work(x)
        return x

    return pw.program(body, name="chain")


@pytest.mark.parametrize(("dispatch", "expected"), [("sequential", 16e-3), ("parallel", 9e-3)])
def test_eight_stages_of_a_millisecond_with_messages_of_a_millisecond(dispatch: Any, expected: float) -> None:
    with attached(dispatch=dispatch, dcn_latency=1e-3):
        program = chain(8, 1e-3)
        run = program.run(pw.put(X, on=WHOLE))
        assert run.summary().makespan == pytest.approx(expected)
        assert run.summary().makespan == pytest.approx(pw.predict(program, X))


@few
@given(st.integers(1, 9), st.floats(1e-6, 1.0), st.just(0.0) | st.floats(1e-6, 1e-2))
def test_chains_last_what_the_closed_form_says(stages: int, seconds: float, latency: float) -> None:
    program = chain(stages, seconds)
    for dispatch, expected in (
        ("sequential", stages * (latency + seconds)),
        ("parallel", latency + stages * seconds),
    ):
        with attached(dispatch=dispatch, dcn_latency=latency):
            assert program.run(pw.put(X, on=WHOLE)).summary().makespan == pytest.approx(expected)


def test_a_work_lasts_exactly_its_time() -> None:
    with attached():
        for seconds in (1e-6, 3e-3, 7.0):
            (event,) = chain(1, seconds).run(pw.put(X, on=WHOLE)).events.of_kind("compute")
            assert event["end"] - event["start"] == pytest.approx(seconds, abs=1e-12)
            assert event["basis"] == "declared"


@pytest.mark.parametrize("shares", [(1, 1, 1, 1), (1, 2, 4, 8)])
def test_shares_are_exact_while_all_clients_compete(shares: Sequence[int]) -> None:
    seconds, calls = 20e-3, 60
    program = chain(1, seconds)
    with attached() as controller:
        tenants = [pw.client(f"c{share}{number}", share=share) for number, share in enumerate(shares)]
        x = pw.put(X, on=WHOLE)
        with pw.record() as run:
            results = [program(x) for _ in range(calls) for one in tenants if not _called(one, program, x)]
        events = run.events.of_kind("compute")
        # Until the client of the largest share has had all its calls, everybody waits for something.
        until = calls * seconds * sum(shares) / max(shares)
        got = Counter(events["client"][events["end"] <= until].tolist())
        for tenant in tenants:
            promised = sum(got.values()) * tenant.share / sum(shares)
            assert abs(got[tenant.name] - promised) <= 2
        assert _waits(run) == {"waits its turn"}
        for tenant in tenants:
            tenant.close()
        del results, x
        assert is_empty(controller)


def _called(tenant: Any, program: pw.Program, x: Any) -> bool:
    with tenant.acting():
        program(x)
    return True


def _waits(run: pw.Run) -> set[str]:
    stalls = run.events.of_kind("stall")
    return set(stalls["name"][stalls["route"] == ""].tolist())


def test_blocks_of_clients_take_turns_in_threads_of_their_own() -> None:
    """Two clients call side by side, each waits at the end of its block: the second need not wait for the first."""
    program = chain(4, 1e-3)
    with attached() as controller:
        with pw.client("ann"):
            program(X)
        with pw.client("bob"):
            program(X)
        assert controller.clock() == pytest.approx(8e-3, rel=0.02)
        assert set(controller.machine.clients) <= {""}


def test_a_users_policy_decides_and_a_failing_one_names_its_line() -> None:
    def last_name_first(ready: Any, state: Any) -> Any:
        return max(ready, key=lambda gang: (gang.client, -gang.serial))

    def broken(ready: Any, state: Any) -> Any:
        raise ValueError("not today")

    program = chain(1, 20e-3)
    with attached(policy=last_name_first), pw.record() as run:
        for _ in range(30):
            for name in ("ann", "zoe"):
                with pw.client(name).acting():
                    program(X)
    events = run.events.of_kind("compute")
    order = events["client"][events["start"].argsort()].tolist()
    assert order[20:] == sorted(order[20:], reverse=True), "once it is known how long a gang takes"
    assert order[20:].count("zoe") > 10
    with attached(policy=broken) as controller:
        with pw.record() as run:
            results = [program(X) for _ in range(12)]
            with pytest.raises(
                pw.PolicyError, match=r"policy broken raised ValueError: not today \(test_simulated_time\.py:\d+\)"
            ):
                pw.wait(results)
        failed = sum(_failed(future) for future in results)
        assert run.summary().failed == failed > 0
        assert f"{failed} failed" in str(run.summary())
        del results
        program(X).wait()
        assert controller.driver.runs == {}


def test_a_budget_of_one_programs_peak_is_enough_and_a_byte_less_is_refused() -> None:
    program = pw.program(lambda x: stage(stage(x)), name="two")
    stage = pw.jit(lambda x: x * 2, on=WHOLE, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    shape = jax.ShapeDtypeStruct((1 << 20,), jnp.float32)
    with attached():
        (peak,) = program.peaks(shape)
    with attached(hbm=peak.bytes) as controller:
        with pw.record() as run:
            for _ in range(5):
                program(shape)
        assert [runs.runs for runs in run.programs] == [5]
        assert run.summary().peak.bytes == peak.bytes  # type: ignore[union-attr]
        assert any("memory of island 0" in reason for reason in _waits(run))
        assert is_empty(controller)
    with attached(hbm=peak.bytes - 1), pytest.raises(pw.OutOfMemoryError, match="two needs 3.15 MB on each device of"):
        program(shape)


def test_a_value_that_is_put_waits_for_memory_in_virtual_time() -> None:
    shape = jax.ShapeDtypeStruct((1 << 20,), jnp.float32)
    with attached(hbm=5 * 2**20, dispatch="parallel"):
        kept = pw.put(shape, on=WHOLE)
        with pytest.raises(pw.OutOfMemoryError, match="put on .* needs 4.19 MB on each device, and lacks"):
            pw.put(shape, on=WHOLE)
        del kept
        pw.put(shape, on=WHOLE).wait()


@few
@given(st.integers(0, 10**9))
def test_the_same_calls_give_the_same_trace_to_the_last_bit(seed: int) -> None:
    rng = random.Random(seed)
    programs = [random_program(rng, f"p{number}") for number in range(3)]
    calls = random_calls(rng, programs, [("", "ann", "bob")] * 3, 8)
    traces = []
    for _ in range(2):
        with pw.attach("sim:tpu_v5e:2x2", noise=0.2, seed=seed, dcn_latency=1e-5) as controller, pw.record() as run:
            carried_out(controller, programs, calls)
        columns = ("kind", "name", "program", "client", "node", "island", "start", "end", "run", "status", "parents")
        events = run.events.without(("trace", "lower"))  # done once only
        traces.append([events[column].tolist() for column in columns])
    assert traces[0] == traces[1]


def test_other_seeds_give_other_times_and_a_reset_begins_anew() -> None:
    def spans() -> list[float]:
        events = chain(5, 1e-3).run(X).events.of_kind("compute")
        return (events["end"] - events["start"]).tolist()

    with attached(noise=0.1, seed=1):
        first = spans()
        pw.reset()
        assert spans() == first
    with attached(noise=0.1, seed=2):
        assert spans() != first
    assert len(set(first)) == 5


@pytest.mark.parametrize("noise", [0.0, 0.1])
def test_the_number_of_devices_changes_neither_events_nor_what_the_agenda_holds(
    monkeypatch: pytest.MonkeyPatch, noise: float
) -> None:
    step = EventQueue.step
    steps = Counter[int]()
    counted = []
    for devices in (8, 2048):

        def count(self: EventQueue, devices: int = devices) -> bool:
            steps[devices] += 1
            return step(self)

        monkeypatch.setattr(EventQueue, "step", count)
        place = pw.virtual_slice(devices)
        first = pw.jit(lambda x: x * 2, on=place, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
        summed = pw.shard_map(lambda x: jax.lax.psum(x, "x"), on=place, in_specs=pw.P("x"), out_specs=pw.P())
        program = pw.program(lambda x: summed(first(x)), name="both")
        with (
            pw.attach("sim", chip="tpu_v3", islands=1, devices_per_island=devices, noise=noise),
            pw.record() as run,
        ):
            for _ in range(3):
                program(jax.ShapeDtypeStruct((4096,), jnp.float32))
        counted.append(Counter(run.events["kind"].tolist()))
    assert counted[0] == counted[1]
    assert steps[8] == steps[2048]


def test_a_call_of_another_client_does_not_overtake_what_it_reads() -> None:
    """Ann's thread has called more than Bob's, and he needs her last result."""
    with pw.attach("sim:tpu_v3:2x4"):
        ann, bob = pw.client("ann"), pw.client("bob")
        with pw.record() as run:
            with ann.acting():
                for _ in range(5):
                    y = both(X)
            with bob.acting():
                z = a(y)
        z.wait()
        events = run.events.of_kind("compute")
        assert events["start"][events["client"] == "bob"][0] >= events["end"][events["client"] == "ann"].max()


def _failed(future: pw.Future) -> bool:
    try:
        future.wait()
    except pw.PolicyError:
        return True
    return False
