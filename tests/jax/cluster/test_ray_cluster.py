"""Islands of hosts on a real Ray cluster on loopback: the same numbers as here, hosts that are killed, what is left.

All tests that start Ray are in this file, and it starts once: each worker of pytest-xdist would have its own. Two
shapes are attached: two islands of one host, and one island of two hosts, which launch in lockstep.
"""

from __future__ import annotations

import importlib
import os
import signal
import subprocess
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import psutil
import pytest

import pathways_nb as pw
from pathways_nb.attach import ray_attach, shared
from pathways_nb.errors import LostError, NodeError, PlaceError, UsageError
from pathways_nb.examples import llama
from pathways_nb.parallel.pipelines.token_context import Context
from pathways_nb.runtime.cluster import island_maker, lean_ray, open_ports, ray_cluster, ray_link
from pathways_nb.runtime.hosts.messages import HostFacts
from pathways_nb.session.attach_options import AttachOptions
from pathways_nb.util.host_info import versions
from tests.support.closeness import close
from tests.support.pipelines import mlp, mlp_model, squared
from tests.support.stranger import CAN_BE_ANOTHER, TRY, said_by_stranger
from tests.support.waiting import until, until_freed

pytestmark = pytest.mark.slow
SIZE = llama.Size(features=32, shared_heads=1, hidden=40, vocabulary=44)
TOKENS, ADAM = 8, optax.adam(1e-2)
X = np.arange(32, dtype=np.float32).reshape(8, 4)

# ---- what needs no Ray


def test_ray_is_optional(monkeypatch) -> None:
    def missing(name: str, *args: Any) -> Any:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", missing)
    with pytest.raises(UsageError) as caught:
        pw.attach("ray")
    assert str(caught.value) == (
        "attach('ray') needs Ray, which is not installed here. Get it: pip install \"pathways_nb[cluster]\"."
    )


@pytest.mark.parametrize(
    ("options", "error", "text"),
    [
        (
            {"devices_per_island": 4, "devices_per_host": 3},
            PlaceError,
            r"an island of 4 devices does not divide into hosts of 3. Make devices_per_island a multiple",
        ),
        ({"islands": 100}, PlaceError, r"100 hosts on this machine.*at most 64 are made"),
        ({"dcn_latency": 1e-3}, UsageError, r"messages take the time that they take here.*pw.attach\('cpu', dcn_lat"),
        ({"address": "127.0.0.1:1"}, PlaceError, r"address='127.0.0.1:1'\): nothing answers there .*Give host:port"),
        (
            {"address": "nonsense"},
            UsageError,
            r"address='nonsense'\): that is not host:port. Give the address of a run",
        ),
        ({"address": ""}, UsageError, r"address=''\): that is not host:port"),
        ({"address": "10.0.0.1:port"}, UsageError, r"address='10.0.0.1:port'\): that is not host:port"),
        ({"address": "http://a:6379"}, UsageError, r"address='http://a:6379'\): that is not host:port"),
        (
            {"address": "10.0.0.1:70000"},
            UsageError,
            r"address='10.0.0.1:70000'\): ports are 1 to 65535.*such as address=",
        ),
        ({"address": 6379}, UsageError, r"address=6379\): it is no text. Give the address of a running Ray cluster"),
        ({"address": "[::1]:1"}, PlaceError, r"address='\[::1\]:1'\): nothing answers there"),
        ({"name": 3}, UsageError, r"name=3\): the name of a controller is a text, such as name=\"lab\"."),
        ({"name": " "}, UsageError, r"name=' '\): the name of a controller is a text"),
        ({"chip": "tpu_v4"}, UsageError, r"chip is for simulated devices"),
    ],
)
def test_options_that_are_refused(options, error, text) -> None:
    with pytest.raises(error, match=text):
        pw.attach("ray", **options)


@pytest.mark.parametrize("option", [{"devices_per_host": 2}, {"address": "a:1"}])
def test_options_of_a_cluster_are_refused_elsewhere(option) -> None:
    (name,) = option
    with pytest.raises(UsageError, match=rf"attach\('cpu', {name}=.*{name} is for"):
        pw.attach("cpu", **option)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("lab", "joined the controller 'lab'"),
        ("lba", "made the controller 'lba', which was not there. Did you mean 'lab'?"),
        ("training", "made the controller 'training', which was not there."),
    ],
)
def test_a_controller_of_a_name_is_said_to_be_made_or_joined(monkeypatch, name, said) -> None:
    """A mistyped name made a second controller without a word."""
    there = {"controller lab": "actor of lab"}

    def get_actor(asked: str, namespace: str) -> str:
        if asked not in there or namespace != ray_cluster.NAMESPACE:
            raise ValueError(asked)
        return there[asked]

    named = [*({"name": one, "namespace": ray_cluster.NAMESPACE} for one in there), {"name": "lba", "namespace": "x"}]
    util = SimpleNamespace(list_named_actors=lambda all_namespaces: named)
    ray = SimpleNamespace(get_actor=get_actor, util=util, cluster_resources=dict)
    monkeypatch.setattr(shared, "create", lambda *_: "new actor")
    asked = AttachOptions("ray", 2, 4, "parallel", False)
    actor, line = shared.find_or_make(ray, name, asked)
    assert (actor, line) == ("actor of lab" if name == "lab" else "new actor", said)


@pytest.mark.parametrize("name", list(versions()))
def test_other_versions_are_refused_by_name(name) -> None:
    facts = HostFacts("far", 1, {**versions(), name: "0.0"}, "cpu", "cpu", 2, 0)
    with pytest.raises(PlaceError, match=rf"host far runs {name} 0\.0, and this process .*: programs could not travel"):
        island_maker._check_versions(facts)


@pytest.mark.parametrize(
    ("has", "devices", "platform", "said"),
    [
        ({"CPU": 8.0}, 4, "cpu", ""),
        ({"GPU": 4.0}, 4, "cuda", ""),
        ({"TPU": 8.0}, 4, "tpu", ""),
        ({"GPU": 2.0}, 4, "cpu", "the cluster has 2 GPUs, fewer than 4: hosts take CPU devices."),
    ],
)
def test_hosts_take_accelerators_if_the_cluster_has_enough(capsys, has, devices, platform, said) -> None:
    assert ray_attach.platform_of(SimpleNamespace(cluster_resources=lambda: has), devices) == platform
    assert said in capsys.readouterr().err


def test_our_token_is_for_our_own_clusters(monkeypatch) -> None:
    """A process with a token cannot start hosts on a cluster without."""
    used: list[bool] = []
    monkeypatch.setattr(ray_cluster.ray_token, "use", lambda say: used.append(True))
    ray_cluster._prepare("10.0.0.1:6379", print)
    assert not used
    ray_cluster._prepare(None, print)
    assert used


def test_why_an_actor_never_was_is_told() -> None:
    never = RuntimeError("The actor died.\n\tclass_name: HostActor\nThe actor never ran - no worker for it.")
    assert ray_link._why(never) == "its process did not start: The actor never ran - no worker for it."
    assert ray_link._why(RuntimeError("The actor died unexpectedly.")) == "its process ended"


def test_ray_starts_without_what_nobody_uses(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PYTHONPATH", "mine")
    node = lean_ray.imported()._private.node.Node
    usual, seen = node.start_monitor, {}

    class Fake:
        @staticmethod
        def init(**options: Any) -> None:
            seen.update(options, path=os.environ["PYTHONPATH"], monitor=node.start_monitor)

    lean_ray.start(Fake, tmp_path, namespace="here")
    first, *rest = seen["path"].split(os.pathsep)
    assert (Path(first) / "rfc3987_syntax.py").is_file()
    assert (rest, seen["namespace"], seen["address"]) == (["mine"], "here", "local")
    assert seen["_temp_dir"] == str(tmp_path)
    assert seen["monitor"] is not usual
    assert (node.start_monitor, os.environ["PYTHONPATH"]) == (usual, "mine")


# ---- with Ray


def ours() -> set[int]:
    """Processes that this one has started, and theirs."""
    return {child.pid for child in psutil.Process().children(recursive=True)}


@pytest.fixture(scope="module")
def connection() -> Iterator[list[ray_cluster.Connection]]:
    """The connection to a cluster of this module's own; a test may take it out and end it."""
    made = [ray_cluster.connect(None)]
    yield made
    for one in made:
        one.release()


@pytest.fixture(scope="class")
def flat(connection) -> Iterator[pw.Controller]:
    """Two islands of one host with two devices."""
    with pw.attach("ray", islands=2, devices_per_island=2, pin=False) as made:
        yield made


@pytest.fixture(scope="class")
def wide(connection) -> Iterator[pw.Controller]:
    """One island of two hosts with two devices each."""
    with pw.attach("ray", islands=1, devices_per_island=4, devices_per_host=2, pin=False) as made:
        yield made


def driver_of(controller: pw.Controller) -> Any:
    return controller.driver


def links(controller: pw.Controller, island: int) -> Sequence[Any]:
    return driver_of(controller).islands[island].links


def processes(controller: pw.Controller) -> list[int]:
    return [link.facts.process for island in driver_of(controller).islands for link in island.links]


def in_actor(link: Any, work: Callable[[Any], Any]) -> Any:
    """Return what a function of the actor returns there."""
    return link.ray.get(link.actor.__ray_call__.remote(work), timeout=120)


def held(actor: Any) -> tuple[int, int, int]:
    """Buffers, runs and expected values of a host."""
    host = actor.host
    return len(host.entries), len(host.runs), len(host.arrivals._coming)


def nothing_left(controller: pw.Controller) -> None:
    """Wait until neither controller nor hosts hold anything."""
    driver = driver_of(controller)
    controller.wait_all()
    until_freed(lambda: not driver.entries and not driver.runs and not driver.messenger._homes)
    hosts = [link for island in driver.islands for link in island.links]
    until(lambda: all(in_actor(link, held) == (0, 0, 0) for link in hosts))


def kill(controller: pw.Controller, island: int, host: int = 0) -> int:
    """Kill a host as the system would; return its process."""
    process: int = links(controller, island)[host].facts.process
    os.kill(process, signal.SIGKILL)
    return process


def rebuilt(controller: pw.Controller, process: int) -> None:
    until(lambda: process not in processes(controller) and not driver_of(controller).messenger.rebuilding)


def here(islands: int, devices: int, work: Callable[[], Any]) -> Any:
    """Return the values that the local driver computes on as many devices."""
    with pw.attach("cpu", islands=islands, devices_per_island=devices, pin=False):
        return pw.get(work())


def llama_loss(params, tokens, targets):
    return llama.loss(llama.stage(params, tokens, Context(0, TOKENS, TOKENS, TOKENS)), targets)


def adam_steps(devices: int) -> Any:
    """Three steps of a Llama whose matrices are sharded by columns."""
    place = pw.virtual_slice(devices, island=0)
    (params,), batch = llama.stages([1], SIZE)[1], llama.batch(4, TOKENS, SIZE)
    spec = jax.tree.map(lambda leaf: pw.P(None, "x") if leaf.ndim == 2 else pw.P(), params)
    loss = pw.jit(llama_loss, on=place, in_shardings=(spec, None, None))

    @pw.program
    def step(params, state, *batch):
        value, gradients = jax.value_and_grad(loss)(params, *batch)
        updates, state = ADAM.update(gradients, state)
        return optax.apply_updates(params, updates), state, value

    params, state, values = pw.put(params, on=place, shardings=spec), ADAM.init(params), []
    for _ in range(3):
        params, state, value = step(params, state, *batch)
        values.append(value)
    return params, values


def pipeline_step(places: Callable[[], list[pw.VirtualSlice]]) -> Any:
    params, x, targets = mlp_model(2)
    pipe = pw.pipeline([mlp, mlp], on=places(), schedule="1f1b", microbatches=4, loss=squared)
    return pipe.value_and_grad(params, x, targets)


def zero3_step(devices: int) -> Any:
    (params,), batch = llama.stages([1], SIZE)[1], llama.batch(8, TOKENS, SIZE)
    place = pw.virtual_slice(devices, island=0, axes=("d",))
    step = pw.fsdp(llama_loss, params, on=place, optimizer=ADAM, mode="zero3")
    params, state = step.init(params)
    for _ in range(2):
        params, state, value = step(params, state, *batch)
    return step.whole(params), value


def endless(v, steps):
    return jax.lax.fori_loop(0, steps, lambda _, v: v * 0.5 + 1, v)


def loopback_only(root: int) -> None:
    """Check that a cluster has ports, and that no other machine reaches one of them."""
    found = [one for child in psutil.Process(root).children(recursive=True) for one in child.net_connections("tcp")]
    assert {one.laddr.ip for one in found if one.status == psutil.CONN_LISTEN} <= {"127.0.0.1", "::ffff:127.0.0.1"}
    assert sum(one.status == psutil.CONN_LISTEN for one in found) > 3, "at least GCS, raylet and an agent listen"
    assert open_ports.reachable(root) == []


CALL = """
try:
    print(ray._raylet.GcsClient(address=sys.argv[1]).internal_kv_keys(b"", None, timeout=10))
except ray.exceptions.AuthenticationError as error:
    print("AuthenticationError")
for name in sys.argv[2:]:
    tried(lambda: socket.socket(socket.AF_UNIX).connect(name))
"""
"""What a stranger tries: to read what the cluster knows, and to connect to its sockets."""


class TestTwoIslands:
    """Two islands of one host with two devices."""

    pytestmark = pytest.mark.usefixtures("watchdog", "flat")

    def test_no_other_user_or_machine_gets_in(self, flat, connection) -> None:
        """It is the canary of Ray's private name for what keeps it on loopback, too."""
        (known,) = connection
        address = known.ray.get_runtime_context().gcs_address
        assert address.startswith("127.0.0.1:")
        loopback_only(os.getpid())
        sockets = [str(path) for path in known.folder.path.glob("session_2*/sockets/*")]
        assert len(sockets) >= 2
        assert max(map(len, sockets)) <= 107
        assert known.folder.path.parent.stat().st_mode & 0o777 == 0o700
        if CAN_BE_ANOTHER:
            others = {name: value for name, value in os.environ.items() if not name.startswith("RAY_AUTH_")}
            others["HOME"] = "/"
            said = said_by_stranger(TRY + CALL, address, *sockets, before="import ray", environment=others)
            assert said.split() == ["AuthenticationError", *["PermissionError"] * len(sockets)]

    def test_adam_steps_equal_the_local_drivers(self, flat) -> None:
        close(adam_steps(2), here(2, 2, lambda: adam_steps(2)), 1e-4)

    def test_a_pipeline_step_equals_the_local_drivers(self, flat) -> None:
        def places() -> list[pw.VirtualSlice]:
            return [pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1)]

        close(pipeline_step(places), here(2, 2, lambda: pipeline_step(places)), 1e-4)

    def test_reset_keeps_hosts_and_frees_everything(self, flat) -> None:
        before = processes(flat)
        value = pw.jit(lambda v: v * 2, on=pw.virtual_slice(2, island=0))(X)
        close(value, X * 2)
        pw.reset()
        assert processes(flat) == before
        assert [in_actor(link, held) for i in range(2) for link in links(flat, i)] == [(0, 0, 0)] * 2
        with pytest.raises(LostError, match="let go"):
            value.wait()
        close(pw.jit(lambda v: v * 2, on=pw.virtual_slice(2, island=0))(X), X * 2)

    def test_a_host_killed_in_the_middle_of_a_program(self, flat) -> None:
        left, right = pw.virtual_slice(2, island=0, name="left"), pw.virtual_slice(2, island=1, name="right")
        work = pw.jit(endless, on=left, in_shardings=(pw.P("x"), None), out_shardings=pw.P("x"))
        beside = pw.jit(lambda v: v + 1, on=right)
        after = pw.jit(lambda v: v - 1, on=right)
        program = pw.program(lambda v, n: after(work(v, n)), name="long")
        close(program(X, np.int32(1)), X * 0.5)
        close(beside(X), X + 1)
        dead = links(flat, 0)[0].facts.process
        result = program(X, np.int32(2**31 - 1))
        until(lambda: in_actor_count(flat) > 0)
        kill(flat, 0)
        with pytest.raises(
            NodeError,
            match=rf"endless of long, run \d+, failed on left \(island 0, devices 0–1\) \(.*test_ray_cluster.py:\d+\): "
            rf"LostError: island 0 lost host .*process {dead}: its process ended",
        ):
            result.result()
        close(beside(X + 1), X + 2)
        close(program(X, np.int32(1)), X * 0.5)  # without redefinition
        assert dead not in processes(flat)

    def test_a_training_loop_goes_on_from_its_last_step(self, flat, tmp_path) -> None:
        left = pw.virtual_slice(2, island=0)

        @pw.program
        def step(w, state):
            gradients = pw_gradient(w)
            updates, state = ADAM.update(gradients, state)
            return optax.apply_updates(w, updates), state

        pw_gradient = pw.jit(jax.grad(lambda w: jnp.sum(jnp.tanh(w) ** 2)), on=left, in_shardings=pw.P("x"))

        def train(path: Path, kill_at: int | None) -> Any:
            pw.save_state(path, {"w": X, "adam": ADAM.init(X), "step": 0})
            like = {"w": X, "adam": ADAM.init(X), "step": 0}
            losses = 0
            while (state := pw.restore_state(path, like=like))["step"] < 4:
                w, adam, at = state["w"], state["adam"], state["step"]
                try:
                    while at < 4:
                        w, adam = step(w, adam)
                        if at == kill_at and not losses:
                            rebuilt(flat, kill(flat, 0))
                        at += 1
                        pw.save_state(path, {"w": w, "adam": adam, "step": at}, overwrite=True)
                except (LostError, NodeError) as error:
                    assert "island 0" in str(error)
                    losses += 1
            assert losses == (kill_at is not None)
            return pw.restore_state(path, like=like)["w"]

        close(train(tmp_path / "one", 2), train(tmp_path / "other", None))

    def test_a_late_island(self, flat) -> None:
        value = pw.jit(lambda v: v * 2, on=pw.virtual_slice(2, island=0))(X)
        assert flat.add(2) == 2
        late = pw.jit(lambda v: v + 1, on=pw.virtual_slice(2, island=2))
        close(late(value), X * 2 + 1)
        late_one, others = links(flat, 2)[0].facts.process, processes(flat)[:2]
        pw.reset()  # to what was attached
        assert flat.islands == (2, 2)
        until(lambda: not psutil.pid_exists(late_one))
        assert processes(flat) == others

    def test_chaos(self, flat) -> None:
        """Three tenants and hosts that are killed: every future is right or fails naming an island."""
        left, right = pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1)
        there = pw.jit(lambda v: jnp.sum(v, 0, keepdims=True) + v, on=left, in_shardings=pw.P("x"))
        back = pw.jit(lambda v: v * 2, on=right, in_shardings=pw.P(None, "x"))
        program = pw.program(lambda v: back(there(v)), name="chaos")
        close(program(X), (X.sum(0) + X) * 2)
        done, bad, failed = [0, 0, 0], list[str](), [0, 0, 0]

        def tenant(number: int) -> None:
            with pw.client(f"t{number}"):
                while done[number] < 100:
                    values = [X + number * 1000 + done[number] + k for k in range(5)]
                    for value, result in [(value, program(value)) for value in values]:
                        try:
                            found = result.result()
                            if not np.allclose(found, (value.sum(0) + value) * 2):
                                bad.append(f"t{number}: a wrong value")
                        except (LostError, NodeError) as error:
                            failed[number] += 1
                            if "island" not in str(error):
                                bad.append(str(error))
                        except BaseException as error:
                            bad.append(repr(error))
                            raise
                        done[number] += 1

        threads = [threading.Thread(target=tenant, args=(number,), daemon=True) for number in range(3)]
        for thread in threads:
            thread.start()
        for number, at in enumerate((40, 110, 180)):
            until(lambda at=at: sum(done) >= at or bool(bad))  # type: ignore[misc]
            until(lambda: not driver_of(flat).messenger.rebuilding)
            kill(flat, number % 2)
        for thread in threads:
            thread.join(200)
        assert not any(thread.is_alive() for thread in threads)
        assert not bad
        assert sum(done) == 300
        until(lambda: not driver_of(flat).messenger.rebuilding)
        close(program(X), (X.sum(0) + X) * 2)
        nothing_left(flat)


def in_actor_count(controller: pw.Controller) -> int:
    """How many launches are under way on island 0."""
    count: int = links(controller, 0)[0].ray.get(
        links(controller, 0)[0].actor.__ray_call__.remote(lambda actor: len(actor.host.dispatcher.computing.flight))
    )
    return count


class TestTwoHosts:
    """One island of two hosts with two devices each."""

    pytestmark = pytest.mark.usefixtures("watchdog", "wide")

    def test_its_hosts_have_met_out_of_others_reach(self, wide) -> None:
        loopback_only(os.getpid())
        first = psutil.Process(links(wide, 0)[0].facts.process)
        (meeting,) = {one.laddr for one in first.net_connections("unix") if one.laddr.endswith("/meeting")}
        assert not Path(meeting).parent.exists(), "nobody joins any more"

    def test_adam_steps_equal_the_local_drivers(self, wide) -> None:
        close(adam_steps(4), here(1, 4, lambda: adam_steps(4)), 1e-4)

    def test_a_pipeline_step_equals_the_local_drivers(self, wide) -> None:
        def places() -> list[pw.VirtualSlice]:
            return [pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=0)]

        close(pipeline_step(places), here(1, 4, lambda: pipeline_step(places)), 1e-4)

    def test_an_fsdp_step_equals_the_local_drivers(self, wide) -> None:
        close(zero3_step(4), here(1, 4, lambda: zero3_step(4)), 1e-4)

    def test_tenants_whose_collectives_must_not_mix(self, wide) -> None:
        place = pw.virtual_slice(4, island=0)
        totals = [
            pw.jit(lambda v, n=n: jnp.sum(v) + n, on=place, in_shardings=pw.P("x"), out_shardings=pw.P())
            for n in range(2)
        ]
        wrong: list[Any] = []

        def tenant(number: int) -> None:
            with pw.client(f"t{number}"):
                for at in range(10):
                    values = [np.full(8, 1000.0 * number + 10 * at + k, np.float32) for k in range(5)]
                    results = [totals[number](value) for value in values]
                    for value, result in zip(values, results, strict=True):
                        if result.result() != value.sum() + number:
                            wrong.append((number, at, result.result(), value.sum() + number))

        threads = [threading.Thread(target=tenant, args=(number,), daemon=True) for number in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(200)
        assert not any(thread.is_alive() for thread in threads)
        assert not wrong

    def test_another_order_on_one_host_would_be_noticed(self, wide) -> None:
        """What the test before relies on: two launches exchanged on one host give other numbers, or an error."""
        place = pw.virtual_slice(4, island=0)
        one, two = (
            pw.program(pw.jit(fn, on=place, in_shardings=pw.P("x"), out_shardings=pw.P()), name=name)
            for name, fn in (("one", lambda v: jnp.sum(v)), ("two", lambda v: jnp.sum(v) + 0))
        )
        values = np.full(8, 1.0, np.float32), np.full(8, 1000.0, np.float32)
        close((one(values[0]), two(values[1])), (8.0, 8000.0))
        wide.wait_all()
        process = links(wide, 0)[1].facts.process
        in_actor(links(wide, 0)[1], exchange_two_launches)
        results, outcomes = (one(values[0]), two(values[1])), dict[int, Any]()

        def fetch(at: int) -> None:
            try:
                outcomes[at] = float(results[at].result())
            except (LostError, NodeError) as error:
                outcomes[at] = error

        threads = [threading.Thread(target=fetch, args=(at,), daemon=True) for at in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(20)  # they may hang, which is noticed, too
        assert outcomes != {0: 8.0, 1: 8000.0}
        if process in processes(wide):
            kill(wide, 0, 1)
        rebuilt(wide, process)
        for thread in threads:
            thread.join(200)
        close((one(values[0]), two(values[1])), (8.0, 8000.0))

    def test_a_stranger_at_a_port_of_the_island_ends_it(self, wide) -> None:
        place = pw.virtual_slice(4, island=0, name="all")
        work = pw.jit(endless, on=place, in_shardings=(pw.P("x"), None), out_shardings=pw.P("x"))
        close(work(X, np.int32(1)), X * 0.5 + 1)
        process = links(wide, 0)[1].facts.process
        result = work(X, np.int32(2**31 - 1))
        until(lambda: in_actor_count(wide) > 0)
        ports, door = in_actor(links(wide, 0)[1], lambda actor: gloo_ports()), links(wide, 0)[1].facts.door
        (port,) = set(ports) - {door.address[1]}  # at the door nobody is trusted who does not know the key
        if CAN_BE_ANOTHER:
            call = (
                "with socket.socket() as mine:\n    mine.connect(('127.0.0.1', int(sys.argv[1])))\n    mine.recv(1)\n"
            )
            threading.Thread(target=said_by_stranger, args=(call, str(port)), daemon=True).start()
        else:
            in_actor(links(wide, 0)[1], lambda actor: actor._intruded("a process of user 7 connected to its port"))
        why = rf"island 0 lost host .*process {process}: a process of user \d+ connected to its port"
        with pytest.raises(NodeError, match=why):
            result.result()
        close(work(X, np.int32(1)), X * 0.5 + 1)
        assert process not in processes(wide)

    def test_one_of_two_hosts_killed(self, wide) -> None:
        place = pw.virtual_slice(4, island=0, name="all")
        work = pw.jit(endless, on=place, in_shardings=(pw.P("x"), None), out_shardings=pw.P("x"))
        program = pw.program(lambda v, n: work(v, n), name="long")
        close(program(X, np.int32(1)), X * 0.5 + 1)
        before = processes(wide)
        result = program(X, np.int32(2**31 - 1))
        until(lambda: in_actor_count(wide) > 0)
        dead = kill(wide, 0, 1)
        with pytest.raises(NodeError, match=rf"endless of long.*island 0 lost host .*process {dead}: its process"):
            result.result()
        close(program(X, np.int32(1)), X * 0.5 + 1)
        assert not set(before) & set(processes(wide)), "an island is one failure unit"
        del result
        nothing_left(wide)


def gloo_ports() -> list[int]:
    """The ports on which this process listens for gloo: Ray's are written as addresses of IPv6."""
    found = psutil.Process().net_connections("tcp4")
    return [one.laddr.port for one in found if one.status == psutil.CONN_LISTEN and one.laddr.ip == "127.0.0.1"]


def exchange_two_launches(actor: Any) -> None:
    """Have a host carry out the next two ranges in the other order."""
    dispatcher, waiting = actor.host.dispatcher, []
    send = dispatcher.send

    def later(*args: Any) -> None:
        waiting.append(args)
        if len(waiting) == 2:
            dispatcher.send = send
            for one in reversed(waiting):
                send(*one)

    dispatcher.send = later


def test_detach_leaves_nothing(connection) -> None:
    """No process and no shared memory of ours stays when the last controller has gone."""
    with pw.attach("ray", islands=1, devices_per_island=1, pin=False) as controller:
        hosts = set(processes(controller))
        close(pw.jit(lambda v: v * 2, on=pw.virtual_slice(1))(X), X * 2)
        everything = ours()
        assert hosts <= everything
        shared = {line.split()[-1] for pid in everything for line in maps(pid) if "/dev/shm/" in line}
    folder = connection[0].folder.path
    assert folder.is_dir()
    connection.pop().release()
    until(lambda: not everything & ours())
    assert not folder.exists()
    assert not any(os.path.exists(path) for path in shared)


@pytest.mark.usefixtures("watchdog")
def test_the_same_kernel_attaches_again_when_the_gcs_was_lost() -> None:
    """The last test. Nothing said so, calls waited without end, and Ray ended the kernel after a minute."""
    with pw.attach("ray", islands=1, devices_per_island=2, pin=False) as before:
        place = pw.virtual_slice(2)
        program = pw.program(lambda v, n: pw.jit(endless, on=place)(v, n), name="long")
        close(program(X, np.int32(1)), X * 0.5 + 1)
        everything = ours()
        node = importlib.import_module("ray._private.worker")._global_node
        result = program(X, np.int32(2**31 - 1))
        node.all_processes["gcs_server"][0].process.kill()
        with pytest.raises(
            LostError, match=r"the Ray cluster .* is lost: its GCS at .* Attach again: pw.attach\('ray'"
        ):
            result.result()
        with pytest.raises(LostError, match="the Ray cluster"):
            program(X, np.int32(1))
        with pw.attach("ray", islands=1, devices_per_island=2, pin=False) as after:
            assert after is not before
            close(program(X, np.int32(1)), X * 0.5 + 1)
            assert not everything & ours(), "of the lost cluster something is left"


KERNEL = """
import ray
from pathways_nb.runtime.cluster import kept_cluster, ray_cluster
connection = ray_cluster.connect(None, shared=True)
print(kept_cluster.keeper(), ray.get_runtime_context().gcs_address, flush=True)
input()
connection.release()
"""


def test_a_cluster_that_outlives_its_kernel_is_as_closed(watchdog) -> None:
    """Its kernel imports Ray first: it is the canary of the private names by which Ray reads its token again, too."""
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="k") as place:
        pipe, environment = subprocess.PIPE, {**os.environ, "TMPDIR": place, "HOME": place}
        for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN_PATH"):
            environment.pop(name, None)
        with subprocess.Popen(
            [sys.executable, "-c", KERNEL], stdin=pipe, stdout=pipe, text=True, env=environment
        ) as one:
            assert one.stdout is not None
            keeper, address = one.stdout.readline().split()
            assert address.startswith("127.0.0.1:")
            loopback_only(int(keeper))
            (session,) = Path(place).glob("pathways_nb-*/r-*/session_2*")
            assert session.parent.parent.stat().st_mode & 0o777 == 0o700
            one.communicate("\n")
        assert one.returncode == 0
        until(lambda: not psutil.pid_exists(int(keeper)))
        assert not list(Path(place).glob("pathways_nb-*/r-*"))


def maps(process: int) -> list[str]:
    try:
        return Path(f"/proc/{process}/maps").read_text().splitlines()
    except OSError:
        return []
