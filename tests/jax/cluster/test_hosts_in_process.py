"""The cluster driver and its hosts in one process: what a program gives, what fails with what, and what is left."""

from __future__ import annotations

import contextlib
import gc
import re
import threading
from collections.abc import Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import pathways_nb as pw
from pathways_nb.errors import CancelledError, LostError, NodeError, OutOfMemoryError, UsageError
from pathways_nb.runtime.hosts import sender
from pathways_nb.runtime.hosts.messages import Call, Drop, ForgetPlans, IslandLost, Range, Send
from pathways_nb.runtime.lowering.compiled_steps import IslandSteps
from tests.support.closeness import close
from tests.support.hosts_in_process import Cluster, hosts_in_process
from tests.support.waiting import held_back, until, until_freed

ROWS = pw.P("x")
X = np.arange(16, dtype=np.float32).reshape(4, 4)


@pytest.fixture
def cluster(watchdog: None, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two islands of one host with four devices; nothing is left at the end."""
    failed = request.session.testsfailed
    with hosts_in_process(2, 4, 4) as made:
        yield made
        if request.session.testsfailed == failed:  # a failed test's traceback holds its results
            until_freed(made.is_empty)


@pytest.fixture(params=[False, True], ids=["by Ray", "by device"])
def either(watchdog: None, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """The same as ``cluster``, for both ways that values may take between islands."""
    failed = request.session.testsfailed
    with hosts_in_process(2, 4, 4, by_device=request.param) as made:
        yield made
        if request.session.testsfailed == failed:
            until_freed(made.is_empty)


@pytest.fixture
def lockstep(watchdog: None, request: pytest.FixtureRequest) -> Iterator[Cluster]:
    """Two islands of two hosts with two devices each."""
    failed = request.session.testsfailed
    with hosts_in_process(2, 4, 2) as made:
        yield made
        if request.session.testsfailed == failed:
            until_freed(made.is_empty)


def places() -> tuple[pw.VirtualSlice, pw.VirtualSlice]:
    return pw.virtual_slice(4, island=0, name="left"), pw.virtual_slice(4, island=1, name="right")


def split(fn: Any, place: pw.VirtualSlice, spec: Any = ROWS, name: str | None = None, **options: Any) -> pw.Computation:
    made = pw.jit(fn, on=place, in_shardings=spec, out_shardings=spec, **options)
    made.name = name or made.name
    return made


def double(v):
    return v * 2


def add_one(v):
    return v + 1


def chain(a: Any, b: Any, name: str = "both") -> pw.Program:
    return pw.program(lambda v: b(a(v)), name=name)


# ---- values


def test_a_call_a_program_and_their_values(cluster) -> None:
    left, right = places()
    a, b = split(double, left), split(add_one, right)
    close(a(X), X * 2)
    close(chain(a, b)(X), X * 2 + 1)
    close(chain(b, a)(a(X)), (X * 2 + 1) * 2)


@pytest.mark.parametrize("sizes", [(4, 2), (2, 4), (4, 3), (3, 1), (1, 4)])
@pytest.mark.parametrize("specs", [(pw.P("x"), pw.P(None, "x")), (pw.P(), pw.P("x")), (pw.P(None, "x"), pw.P())])
def test_from_m_devices_to_n(either, sizes, specs) -> None:
    number = np.random.default_rng(0).normal(size=(12, 12)).astype("f4")
    first, second = (pw.virtual_slice(size, island=at) for at, size in enumerate(sizes))
    a, b = split(jnp.sin, first, specs[0]), split(jnp.cos, second, specs[1])
    close(chain(a, b)(number), np.cos(np.sin(number)))
    close(b(a(number)), np.cos(np.sin(number)))  # an argument that comes from the other island


def test_only_what_is_needed_travels(either) -> None:
    """Whole rows from two devices to one host, once, though each of its four devices needs all of them."""
    left, right = pw.virtual_slice(2, island=0), pw.virtual_slice(4, island=1)
    step = chain(split(double, left), split(add_one, right, pw.P()))
    with pw.record() as run:
        close(step(X), X * 2 + 1)
    either.controller.wait_all()
    moved = run.events.of_kind("transfer")
    assert moved.select(moved.is_("route", "DCN"))["bytes"].tolist() == [X.nbytes]


def test_all_kinds_of_values(either) -> None:
    left, right = places()
    key = jax.random.key(3)

    def draw(key, low, scale, none):
        return jax.random.normal(key, (4,)) * scale, jax.random.split(key, 4), (low * 2).astype(jnp.bfloat16), scale + 1

    a = pw.jit(draw, on=left)
    b = pw.jit(lambda n, keys, low, one: (n + one, jax.vmap(jax.random.bits)(keys), low * 2, -one), on=right)
    low = np.arange(4, dtype=jnp.bfloat16)
    made = a(key, low, np.float32(2), np.zeros((0, 3), "f4"))
    wanted = draw(key, low, np.float32(2), None)
    numbers, keys, small, one = pw.get(made)
    assert jax.dtypes.issubdtype(keys.dtype, jax.dtypes.prng_key)
    np.testing.assert_array_equal(jax.random.key_data(keys), jax.random.key_data(wanted[1]))
    assert small.dtype == jnp.bfloat16
    assert one.shape == ()
    close((numbers, small.astype("f4"), one), (wanted[0], wanted[2].astype("f4"), wanted[3]))
    found = pw.get(b(*made))  # on the other island
    close(found[0], wanted[0] + 3)
    np.testing.assert_array_equal(found[1], jax.vmap(jax.random.bits)(wanted[1]))
    close((found[2].astype("f4"), found[3]), (low.astype("f4") * 4, -3.0))


def test_each_of_two_equal_results_lives_as_long_as_its_own_handle(cluster) -> None:
    left, _ = places()
    a = split(double, left)

    @pw.program
    def twice(v):
        y = a(v)
        return y, y

    first, second = twice(X)
    first.wait()
    del first
    until(lambda: any(isinstance(message, Drop) for message in cluster.links[0, 0].taken))
    close(second, X * 2)


def test_a_host_that_cannot_carry_out_a_message_is_replaced(cluster) -> None:
    """Nobody reads the answer to a message: the host reports that it is of no more use."""
    left, _ = places()
    a = split(double, left, name="a")
    close(a(X), X * 2)
    link = cluster.links[0, 0]
    link.change = lambda messages: [replace(m, plan="unknown") if isinstance(m, Call) else m for m in messages]
    with pytest.raises(
        PW_ERRORS, match=r"island 0 lost host host-0-0, process \d+: it fell out of step: KeyError: 'unknown'"
    ):
        a(X).result()
    close(a(X), X * 2)


def test_a_call_whose_hosts_die_while_they_compile_waits_for_new_ones(cluster) -> None:
    left, _ = places()
    link = cluster.links[0, 0]
    asked, usual = threading.Event(), link.host.install

    def dies(*args: Any) -> None:
        asked.set()
        link.kill()
        usual(*args)

    link.host.install = dies
    close(split(double, left)(X), X * 2)
    assert asked.is_set()
    assert cluster.rebuilds == 1


def test_a_value_that_cannot_be_sent_fails_what_waits_for_it(cluster, monkeypatch) -> None:
    left, right = places()
    a, b = split(double, left, name="a"), split(add_one, right, name="b")
    close(b(a(X)), X * 2 + 1)

    def broken(*args: Any) -> Any:
        raise RuntimeError("no way out")

    with monkeypatch.context() as patched:
        patched.setattr(sender, "numbers", broken)
        with pytest.raises(NodeError, match="no way out"):
            b(a(X)).result()
    close(b(a(X)), X * 2 + 1)


def test_a_plan_that_hosts_were_told_to_forget_is_given_to_them_anew(cluster) -> None:
    """The order to forget and the new plan take different ways, so either may be first."""
    left, _ = places()
    taken = cluster.links[0, 0].taken
    for _ in range(3):
        again = split(double, left, name="a")
        close(again(X), X * 2)
        plans = [message.plan for message in taken if isinstance(message, Call)]
        del again
        gc.collect()
    until(lambda: len(set(plans)) == len(plans) == 3)


def test_pieces_of_another_value_are_noticed(watchdog) -> None:
    """A transfer server whose peer died may send what was for it to another: that must not become a wrong number."""
    with hosts_in_process(2, 2, 2, by_device=True) as made:
        left, right = pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1)
        a, b = split(double, left, name="a"), split(add_one, right, name="b")
        close(b(a(X)), X * 2 + 1)
        route = made.links[0, 0].host.route
        assert route is not None
        usual = route.offer
        made.links[0, 0].host._sender.route = SimpleNamespace(  # type: ignore[assignment]
            offer=lambda *args: replace(usual(*args), mark=-1), withdraw=route.withdraw
        )
        with pytest.raises(PW_ERRORS, match="pieces of another value came"):
            b(a(X)).result()
        made.links[0, 0].host._sender.route = route
        close(b(a(X)), X * 2 + 1)


def test_empty_arrays_cross(either) -> None:
    left, right = places()
    found = pw.get(chain(split(double, left, pw.P()), split(add_one, right))(np.zeros((0, 4), "f4")))
    assert found.shape == (0, 4)


def test_gradients_through_two_islands(either) -> None:
    left, right = places()
    a = split(lambda w, x: jnp.tanh(x @ w), left, None)
    b = split(lambda w, h: jnp.mean((h @ w) ** 2), right, None)

    def loss(first, second, x):
        return b(second, a(first, x))

    def plain(first, second, x):
        return jnp.mean((jnp.tanh(x @ first) @ second) ** 2)

    number = np.random.default_rng(1)
    w = [number.normal(size=(4, 4)).astype("f4") for _ in range(2)]
    step = pw.program(jax.value_and_grad(loss, argnums=(0, 1)))
    close(step(*w, X), jax.value_and_grad(plain, argnums=(0, 1))(*w, X))


def test_what_was_put_and_saved(cluster, tmp_path) -> None:
    left, _ = places()
    state = {"w": pw.put(X, on=left, shardings=pw.P("x")), "key": pw.put(jax.random.key(1), on=left)}
    close(state["w"], X)
    pw.save_state(tmp_path / "s", state)
    back = pw.restore_state(tmp_path / "s", on=left)
    close(back["w"], X)
    close(split(double, left)(back["w"]), X * 2)


def test_an_uneven_parameter_of_fsdp(cluster, tmp_path) -> None:
    left, right = places()
    weights = np.arange(5, dtype=np.float32)
    steps = [
        pw.fsdp(lambda w, x: jnp.mean((x * w["w"]) ** 2), {"w": weights}, on=on, optimizer=optax.sgd(0.1, 0.9))
        for on in (left, pw.virtual_slice(3, island=1))
    ]
    x = np.ones((12, 5), np.float32)
    kept, state, _ = steps[0](*steps[0].init({"w": weights}), x)
    expected = {"w": weights - 0.1 * 2 * weights / 5}
    close(kept, expected)
    close(pw.jit(jnp.mean, on=right)(kept["w"]), expected["w"].mean())
    pw.save_state(tmp_path / "s", (kept, state))
    restored = pw.restore_state(tmp_path / "s", like=steps[1].init({"w": weights}))
    close(restored, (kept, state))
    close(steps[1](*restored, x), steps[0](kept, state, x))


def test_another_layout_on_the_same_devices(cluster) -> None:
    left, _ = places()
    rows, columns = split(double, left), split(add_one, left, pw.P(None, "x"))
    close(columns(pw.put(X, on=left)), X + 1)
    close(columns(rows(X)), X * 2 + 1)


def test_donated_arguments(either) -> None:
    left, right = places()
    step = split(add_one, left, donate_argnums=0)
    value = pw.put(X, on=left, shardings=pw.P("x"))
    other = split(double, right)(value)  # is sent before its memory is taken over
    for _ in range(20):
        value = step(value)
    close(value, X + 20)
    close(other, X * 2)


def test_memory_that_two_places_share_is_taken_over_only_by_its_last_reader(cluster) -> None:
    left, _ = places()
    takes, reads = split(add_one, left, donate_argnums=0), split(double, pw.virtual_slice(4, island=0))
    whole = pw.program(lambda x: (lambda s: (reads(s), takes(s), reads(s)))(takes(x)))
    for _ in range(3):
        close(whole(X), ((X + 1) * 2, X + 2, (X + 1) * 2))


def test_many_calls_in_order(either) -> None:
    left, right = places()
    one, two = split(add_one, left), split(double, right)
    results = [two(one(np.full((4, 4), n, "f4"))) for n in range(60)]
    for n, result in enumerate(results):
        close(result, np.full((4, 4), (n + 1) * 2))


def test_a_value_is_not_asked_for_before_its_run(cluster) -> None:
    """A reader may be told of while the run that makes its argument still waits for its turn in the core."""
    left, right = places()
    one, two = split(add_one, left), split(double, right)
    close(two(one(X)), (X + 1) * 2)
    host = cluster.links[0, 0]
    with held_back(host.host.dispatcher):
        firsts = [one(X + n) for n in range(30)]
        seconds = [two(first) for first in firsts]
    for n, second in enumerate(seconds):
        close(second, (X + n + 1) * 2)
    known = set()
    for message in host.taken:
        if isinstance(message, Call):
            known |= set(message.results)
        assert not isinstance(message, Send) or message.buffer in known


def test_sequential_dispatch(watchdog) -> None:
    with hosts_in_process(2, 2, 2, dispatch="sequential"):
        left, right = pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1)
        close(chain(split(double, left), split(add_one, right))(X), X * 2 + 1)


def test_tenants(cluster) -> None:
    left, right = places()
    step = chain(split(double, left), split(add_one, right))

    def work(name: str, number: int, found: dict[str, list[Any]]) -> None:
        with pw.client(name):
            found[name] = [step(X + number + at).result() for at in range(15)]

    found: dict[str, list[Any]] = {}
    threads = [threading.Thread(target=work, args=(f"t{n}", 100 * n, found)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for n in range(3):
        close(found[f"t{n}"], [(X + 100 * n + at) * 2 + 1 for at in range(15)])


# ---- messages


def test_one_message_for_each_host_and_program(cluster) -> None:
    left, right = places()
    step = chain(split(double, left), split(add_one, right))
    close(step(X), X * 2 + 1)
    cluster.controller.wait_all()
    before = {where: len(link.taken) for where, link in cluster.links.items()}
    kept = step(X)
    close(kept, X * 2 + 1)
    for where, link in cluster.links.items():
        new = [type(m) for m in link.taken[before[where] :] if not isinstance(m, Drop)]
        assert new == [Call, Range], where


def test_a_plan_travels_once(cluster) -> None:
    left, _ = places()
    step = split(double, left)
    for _ in range(3):
        close(step(X), X * 2)
    assert len(cluster.links[0, 0].host._plans) == 1
    assert not cluster.links[1, 0].host._plans


def test_plans_are_forgotten_with_their_programs(cluster) -> None:
    left, right = places()
    step = chain(split(double, left), split(add_one, right))
    close(step(X), X * 2 + 1)
    del step
    other = split(lambda v: v - 7, left)

    def forgotten() -> bool:
        close(other(X), X - 7)
        fresh = split(lambda v: v * 3, left)  # compiling is when plans are forgotten
        close(fresh(X), X * 3)
        return any(isinstance(m, ForgetPlans) for m in cluster.links[1, 0].taken)

    until_freed(forgotten)
    until(lambda: not cluster.links[1, 0].host._plans)
    close(other(X), X - 7)


def test_buffers_are_dropped_on_hosts(cluster) -> None:
    left, _ = places()
    value = split(double, left)(X)
    value.wait()
    host = cluster.links[0, 0].host
    assert host.entries
    del value
    until_freed(lambda: not host.entries)


def test_a_value_that_is_not_computed_yet_is_sent_when_it_is(cluster) -> None:
    left, right = places()
    a, b = split(double, left), split(add_one, right)
    close(b(a(X)), X * 2 + 1)
    source = cluster.links[0, 0]
    with held_back(source.host.dispatcher):
        result = b(a(X + 1))
        until(lambda: bool(source.host._waiting))
        assert not result.done()
    close(result, (X + 1) * 2 + 1)


def test_a_late_value_does_not_hold_up_the_steps_before_its_use(cluster) -> None:
    left, right = places()
    a, b, c = split(double, left), split(add_one, right), split(lambda v: v - 1, right)
    step = pw.program(lambda x, y: (c(y), b(a(x))))
    for result in step(X, X):
        result.wait()
    with held_back(cluster.links[0, 0].host.dispatcher):
        early, late = step(X, X)
        close(early, X - 1)
        assert not late.done()
    close(late, X * 2 + 1)


# ---- errors


def test_an_injected_fault_names_its_node_and_reaches_the_other_island(cluster) -> None:
    left, right = places()
    a, b, c = split(double, left, name="a"), split(add_one, right, name="b"), split(add_one, left, name="c")

    @pw.program
    def both(v):
        y = a(v)
        return b(y), c(v)

    with pw.inject_fault("a") as fault:
        bad, good = both(X)
        with pytest.raises(
            NodeError, match=r"a of both, run \d+, failed on left \(island 0, devices 0–3\) \(.*\): InjectedFault: inj"
        ):
            bad.result()
        close(good, X + 1)
        with pytest.raises(NodeError, match="a of both"):
            c(bad).result()
    assert fault.hits == 1
    close(both(X)[0], X * 2 + 1)


def test_cancelled_programs(cluster) -> None:
    left, right = places()
    step = chain(split(double, left, name="a"), split(add_one, right, name="b"))
    step(X).wait()
    with pw.client("ann") as ann:
        with held_back(cluster.links[0, 0].host.dispatcher):
            results = [step(X) for _ in range(4)]
            ann.cancel()
        outcomes = []
        for result in results:
            try:
                close(result, X * 2 + 1)
                outcomes.append("right")
            except CancelledError as error:
                assert "was cancelled before it was dispatched" in str(error)
                outcomes.append("cancelled")
    assert "cancelled" in outcomes
    close(step(X), X * 2 + 1)


def test_memory_is_counted(watchdog) -> None:
    with hosts_in_process(2, 2, 2, hbm=4096) as made:
        left = pw.virtual_slice(2, island=0)
        held = pw.put(np.zeros(768, "f4"), on=left, shardings=pw.P("x"))
        with pytest.raises(OutOfMemoryError):
            pw.put(np.zeros(2048, "f4"), on=left, shardings=pw.P("x"))
        close(split(add_one, left)(held), np.ones(768))
        del held
        until_freed(made.is_empty)


def test_computations_that_call_back_are_refused(cluster) -> None:
    left, _ = places()

    def shout(v):
        jax.debug.print("{}", v)
        return v

    with pytest.raises(UsageError, match="calls back to Python or prints, and its hosts are other processes"):
        pw.jit(shout, on=left)(X)


def test_removed_devices(cluster) -> None:
    left, right = places()
    a, b = split(double, left), split(add_one, right)
    held = b(X)
    held.wait()
    cluster.controller.remove(1)
    with pytest.raises(LostError, match="island 1"):
        held.result()
    close(a(X), X * 2)
    assert cluster.controller.add(island=1) == 1
    close(b(X), X + 1)


def test_a_late_island(cluster) -> None:
    left, _ = places()
    value = split(double, left)(X)
    assert cluster.controller.add(4) == 2
    third = pw.virtual_slice(4, island=2)
    close(split(add_one, third)(value), X * 2 + 1)


def test_reset_keeps_hosts(cluster) -> None:
    left, _ = places()
    step, value = split(double, left), None
    value = step(X)
    value.wait()
    hosts = cluster.hosts()
    pw.reset()
    assert all(not host.entries and not host._plans for host in hosts)
    with pytest.raises(LostError, match="let go"):
        value.result()
    left = pw.virtual_slice(4, island=0)
    close(split(double, left)(X), X * 2)
    assert cluster.hosts() == hosts


# ---- hosts that die


def dies_holding(cluster: Cluster, island: int = 0) -> threading.Event:
    """Let an island's hosts die at the next range; return an event that is set when they have."""
    dead = threading.Event()

    def die(messages: list[Any]) -> list[Any]:
        if any(isinstance(m, Range) for m in messages):
            cluster.links[island, 0].kill()
            dead.set()
            return []
        return messages

    cluster.links[island, 0].change = die
    return dead


def test_a_host_that_dies_in_a_program(cluster) -> None:
    left, right = places()
    a, b = split(double, left, name="a"), split(add_one, right, name="b")
    step, beside = chain(a, b), split(lambda v: v - 1, right)
    close(step(X), X * 2 + 1)
    kept, lost = beside(X), a(X)
    lost.wait()
    dead = dies_holding(cluster)
    result = step(X)
    with pytest.raises(
        NodeError,
        match=r"a of both, run \d+, failed on left \(island 0, devices 0–3\) \(.*\): "
        r"LostError: island 0 lost host host-0-0, process \d+: its process ended",
    ):
        result.result()
    assert dead.is_set()
    with pytest.raises(LostError, match="island 0"):
        lost.result()
    close(kept, X - 1)
    close(step(X), X * 2 + 1)  # waits for the new hosts, without redefinition
    assert cluster.rebuilds == 1


def test_others_go_on_while_an_island_is_gone(cluster) -> None:
    left, right = places()
    a, b = split(double, left), split(add_one, right)
    close((a(X), b(X)), (X * 2, X + 1))
    cluster.may_rebuild.clear()
    dies_holding(cluster)
    with pytest.raises(NodeError, match="island 0 lost host"):
        a(X).result()
    for _ in range(5):
        close(b(X), X + 1)
    cluster.may_rebuild.set()
    close(a(X), X * 2)


def dying(cluster: Cluster) -> None:
    """Kill the host of island 0, which gets no new one yet, and wait until no plan with its devices is used."""
    controller, epoch = cluster.controller, cluster.controller.epoch
    cluster.may_rebuild.clear()
    cluster.links[0, 0].kill()
    # Devices are taken out first and the epoch begins after that: a call in between still has the plan of before.
    until(lambda: bool(cluster.driver.messenger.rebuilding and controller.resources.lost))
    until(lambda: controller.epoch is not epoch)


def test_dead_hosts_are_not_listed(cluster) -> None:
    controller = cluster.controller
    assert [row["island"] for row in controller.hosts()] == [0, 1]
    dying(cluster)
    assert [row["island"] for row in controller.hosts()] == [1]
    assert re.search(r"island 0: 4 × cpu.*; lost, being rebuilt", controller.status())
    assert "host 0 of island 0" not in controller.status()
    cluster.may_rebuild.set()
    controller.driver.wait_for_devices()
    assert [row["island"] for row in controller.hosts()] == [0, 1]


def test_an_island_is_added_again_only_when_it_has_new_hosts(cluster) -> None:
    """The dead ones were taken in, and the next call failed with them."""
    a = split(double, places()[0])
    close(a(X), X * 2)
    dying(cluster)
    adding = threading.Thread(target=lambda: cluster.controller.add(island=0))
    adding.start()
    cluster.may_rebuild.set()
    adding.join()
    assert cluster.rebuilds == 1
    close(a(X), X * 2)


def test_a_place_whose_island_is_back_just_after_it_was_missed(cluster, monkeypatch) -> None:
    """Between the attempt to place it and the question whether anything is rebuilt, the rebuilding ended."""
    left, driver = places()[0], cluster.driver
    a = split(double, left)
    close(a(X), X * 2)
    dying(cluster)
    usual = driver.wait_for_devices

    def too_late() -> bool:
        cluster.may_rebuild.set()
        until(lambda: not driver.messenger.rebuilding)
        return usual()

    monkeypatch.setattr(driver, "wait_for_devices", too_late)
    close(a(X), X * 2)


def test_a_call_whose_hosts_are_back_just_after_it_failed_to_compile(cluster, monkeypatch) -> None:
    link, driver = cluster.links[0, 0], cluster.driver
    usual, asked = link.host.install, driver.wait_for_devices

    def dies(*args: Any) -> None:
        link.kill()
        usual(*args)

    def too_late() -> bool:
        until(lambda: cluster.rebuilds == 1 and not driver.messenger.rebuilding)
        return asked()

    link.host.install = dies
    monkeypatch.setattr(driver, "wait_for_devices", too_late)
    close(split(double, places()[0])(X), X * 2)


def test_a_receiver_that_dies_fails_only_what_needs_it(either) -> None:
    left, right = places()
    a, b = split(double, left, name="a"), split(add_one, right, name="b")

    @pw.program
    def both(v):
        y = a(v)
        return y, b(y)

    for result in both(X):
        result.wait()
    dies_holding(either, 1)
    good, bad = both(X)
    close(good, X * 2)
    with pytest.raises(NodeError, match=r"b of both.*island 1 lost host host-1-0"):
        bad.result()
    close(both(X), (X * 2, X * 2 + 1))


def test_a_sender_that_dies_before_it_sends(cluster) -> None:
    """The receiver waits for a parcel that will not come; it is told, and its next programs run."""
    left, right = places()
    a, b, c = split(double, left, name="a"), split(add_one, right, name="b"), split(lambda v: v - 1, right)
    close(b(a(X)), X * 2 + 1)
    source, target = cluster.links[0, 0], cluster.links[1, 0]
    with held_back(source.host.dispatcher):
        result = b(a(X))
        until(lambda: bool(target.host.arrivals._coming))
        source.kill()
        with pytest.raises(PW_ERRORS, match="island 0 lost host host-0-0"):
            result.result()
        close(c(X), X - 1)
    assert any(isinstance(m, IslandLost) for m in target.taken)
    until(lambda: not target.host.arrivals._coming)
    close(b(a(X)), X * 2 + 1)


PW_ERRORS = (NodeError, LostError)


def test_an_argument_that_was_lost(cluster) -> None:
    left, right = places()
    a, b = split(double, left), split(add_one, right)
    held = a(X)
    held.wait()
    cluster.links[0, 0].kill()
    until(lambda: cluster.rebuilds == 1 and not cluster.driver.messenger.rebuilding)
    with pytest.raises(PW_ERRORS, match="island 0"):
        b(held).result()
    close(b(a(X)), X * 2 + 1)


def test_a_fetch_from_a_host_that_died(cluster) -> None:
    left, _ = places()
    held = split(double, left)(X)
    held.wait()
    cluster.may_rebuild.clear()
    cluster.links[0, 0].kill()
    with pytest.raises(LostError, match="island 0"):
        held.result()
    cluster.may_rebuild.set()


@pytest.mark.parametrize("begun", [False, True])
def test_reset_while_hosts_are_replaced(cluster, begun) -> None:
    left, right = places()
    close(chain(split(double, left), split(add_one, right))(X), X * 2 + 1)
    cluster.may_rebuild.clear()
    driver = cluster.driver
    with contextlib.nullcontext() if begun else cluster.controller.life:
        cluster.links[0, 0].kill()
        until(lambda: bool(driver.messenger.rebuilding))
        allowed = threading.Thread(target=lambda: (until(lambda: driver.closed), cluster.may_rebuild.set()))
        allowed.start()
        pw.reset()
    allowed.join()
    left, right = places()
    close(chain(split(double, left), split(add_one, right))(X), X * 2 + 1)
    assert not cluster.links[0, 0].dead.is_set()
    assert cluster.rebuilds == 1


@pytest.mark.parametrize("hosts", [1, 2])
def test_a_value_that_devices_and_host_work_read_stays_until_both_have(watchdog, hosts) -> None:
    """The first last use of either dropped it, and the other waited for ever: a pipeline with pw.mean did."""
    with hosts_in_process(2, 4, 4 // hosts):
        left, _ = places()
        a, b, c = (replicated(fn, left) for fn in (double, add_one, jnp.sin))
        add = replicated(lambda v, w: v + w, left)
        out = jax.ShapeDtypeStruct(X.shape, X.dtype)
        total = pw.host(lambda v, w: v + w, on=left, out=out)
        half = pw.host(lambda v: v / 2, on=left, out=out)

        @pw.program
        def devices_first(x: Any) -> Any:
            y = a(x)
            return total(c(b(y)), y)

        @pw.program
        def host_first(x: Any) -> Any:
            y = a(x)
            return add(half(y), y)

        for _ in range(3):
            close(devices_first(X), np.sin(X * 2 + 1) + X * 2)
            close(host_first(X), X * 3)


def test_a_reader_of_what_was_cancelled_before_its_hosts_heard_of_it(watchdog) -> None:
    with hosts_in_process(2, 2, 2, dispatch="sequential") as made:
        left, right = pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1)
        slow, a, b = split(jnp.sin, left), split(double, left), split(add_one, right)
        close(b(a(slow(X))), np.sin(X) * 2 + 1)
        with pw.client("ann") as ann, held_back(made.links[0, 0].host.dispatcher):
            first = slow(X)
            result = b(a(first))
            ann.cancel()
        # Whether ann's closing or her hosts' answer to the cancelling comes first decides how the result was lost.
        with contextlib.suppress(CancelledError, pw.LostError):
            close(result, np.sin(X) * 2 + 1)
        close(b(a(slow(X))), np.sin(X) * 2 + 1)


# ---- several hosts in lockstep


def replicated(fn: Any, place: pw.VirtualSlice, **options: Any) -> pw.Computation:
    return split(fn, place, pw.P(), **options)


def test_an_island_of_two_hosts(lockstep) -> None:
    left, right = places()
    a, b = replicated(double, left), replicated(add_one, right)
    close(chain(a, b)(X), X * 2 + 1)
    close(b(a(X)), X * 2 + 1)


def test_all_hosts_launch_in_one_order(lockstep) -> None:
    left, _ = places()
    steps = [pw.program(replicated(lambda v, n=n: v + n, left), name=f"s{n}") for n in range(4)]

    def work(name: str) -> None:
        with pw.client(name):
            for step in steps * 5:
                step(X).wait()

    threads = [threading.Thread(target=work, args=(f"t{n}",)) for n in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    orders = [[(m.run, m.start) for m in lockstep.links[0, n].taken if isinstance(m, Range)] for n in range(2)]
    assert orders[0] == orders[1]
    assert len(orders[0]) == 60


def test_an_injected_fault_strikes_all_hosts(lockstep) -> None:
    left, right = places()
    step = chain(replicated(double, left, name="a"), replicated(add_one, right, name="b"))
    close(step(X), X * 2 + 1)
    with pw.inject_fault("a"), pytest.raises(NodeError, match="a of both.*injected fault 1 of"):
        step(X).result()
    close(step(X), X * 2 + 1)
    assert not lockstep.rebuilds


def test_a_step_that_fails_on_one_host_gives_up_the_island(lockstep) -> None:
    """The other host may have launched it, and would wait in a collective for ever."""
    left, _ = places()
    step = pw.program(replicated(double, left, name="a"), name="one")
    close(step(X), X * 2)
    host = lockstep.links[0, 1].host
    (plan,) = host._plans.values()
    plan._resolved = IslandSteps(
        plan.resolved(0).order,
        {at: replace(one, call=lambda *args: 1 / 0) for at, one in plan.resolved(0).launches.items()},
    )
    with pytest.raises(NodeError, match="a of one"):
        step(X).result()
    until(lambda: lockstep.rebuilds == 1 and not lockstep.driver.messenger.rebuilding)
    close(step(X), X * 2)


def test_one_host_without_the_value_goes_on_with_zeros_and_nobody_is_given_them(lockstep) -> None:
    """A sender died after one of two hosts had its parcel: both launch the same, and the result is an error."""
    left, right = places()
    a, b = replicated(double, left, name="a"), replicated(add_one, right, name="b")
    step = chain(a, b)
    close(step(X), X * 2 + 1)
    sources = [lockstep.links[0, n] for n in range(2)]
    targets = [lockstep.links[1, n] for n in range(2)]
    launches = [0, 0]
    for number, target in enumerate(targets):
        launches[number] = target.host.dispatcher.computing.ends.seen
    arrived = threading.Event()

    def only_to_the_first(island: int, number: int, parcel: Any, on_taken: Any) -> None:
        if number == 0:
            targets[0].host.arrivals.receive(parcel)
            arrived.set()
        else:
            arrived.wait(60)
            sources[0].kill()

    for source in sources:
        source.host.deliver = only_to_the_first
    result = step(X)
    with pytest.raises(NodeError, match=r"of both.*island 0 lost host"):
        result.result()
    lockstep.controller.wait_all()
    until(lambda: all(t.host.dispatcher.computing.ends.seen == n + 1 for t, n in zip(targets, launches, strict=True)))
    close(step(X), X * 2 + 1)
    assert [link.dead.is_set() for link in targets] == [False, False]
    assert lockstep.rebuilds == 1


def test_hosts_in_lockstep_do_not_cancel_what_others_may_have_launched(lockstep) -> None:
    left, _ = places()
    step = pw.program(replicated(double, left), name="one")
    step(X).wait()
    with pw.client("ann") as ann:
        with held_back(lockstep.links[0, 0].host.dispatcher):
            results = [step(X) for _ in range(3)]
            ann.cancel()
        for result in results:
            with contextlib.suppress(CancelledError):
                close(result, X * 2)
    lockstep.controller.wait_all()
    until(lambda: len({lockstep.links[0, n].host.dispatcher.computing.ends.seen for n in range(2)}) == 1)
    close(step(X), X * 2)


def test_a_host_of_two_that_dies(lockstep) -> None:
    left, right = places()
    a, b = replicated(double, left, name="a"), replicated(add_one, right, name="b")
    step = chain(a, b)
    close(step(X), X * 2 + 1)
    with held_back(lockstep.links[0, 0].host.dispatcher), held_back(lockstep.links[0, 1].host.dispatcher):
        result = step(X)
        lockstep.links[0, 1].kill()
        with pytest.raises(NodeError, match=r"a of both.*island 0 lost host host-0-1"):
            result.result()
    close(step(X), X * 2 + 1)
    assert lockstep.links[0, 0].host.number == 0
    assert lockstep.rebuilds == 1
