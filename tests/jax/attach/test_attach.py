"""Attaching: the same again, another, restored by ``with``, reset, one island, no pinning, no affinity, accelerators."""

from __future__ import annotations

import os

import jax
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.runtime import accelerators, local_islands
from tests.support.fake_devices import FakeDevice

v = np.arange(8, dtype=np.float32)
GONE = "was held on devices that have been let go (attached again, reset or closed). Run it again."


def double(size: int = 4, **options) -> pw.Computation:
    place = pw.virtual_slice(size, **options)
    doubled = pw.jit(lambda v: v * 2, on=place, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    return doubled


def ids(controller: pw.Controller) -> set[int]:
    return {device.id for island in controller.driver.attachment.islands for device in island.devices}


def test_the_same_again_does_nothing(controller) -> None:
    y = double()(v)
    assert pw.attach("cpu", islands=2, devices_per_island=4) is controller
    np.testing.assert_array_equal(y.result(), v * 2)


def test_the_same_with_its_defaults_left_out_does_nothing(controller) -> None:
    y = double()(v)
    assert pw.attach("cpu") is controller
    np.testing.assert_array_equal(y.result(), v * 2)


def test_another_lets_the_old_go_and_its_results_say_so(controller) -> None:
    f = double()
    y, z = f(v), f(v + 1)
    z.result()
    other = pw.attach("cpu", islands=1, devices_per_island=4)
    assert other is not controller
    for future in (y, z):
        with pytest.raises(pw.LostError) as error:
            future.result()
        assert GONE in str(error.value)
        with pytest.raises(pw.LostError):
            f(future)
        assert repr(future).startswith("<future doubled: float32[8], ")
    assert "closed" in repr(controller)
    with pytest.raises(pw.NotAttachedError, match="have been let go. Call pw.attach"):
        controller.status()
    np.testing.assert_array_equal(f(v).result(), v * 2)


def test_with_restores_the_one_before(controller) -> None:
    f = double(2)
    y = f(v)
    with pw.attach("cpu", islands=1, devices_per_island=2) as other:
        assert not ids(other) & ids(controller)
        z = f(v + 1)
        np.testing.assert_array_equal(y.result(), v * 2)
        np.testing.assert_array_equal(f(y).result(), v * 4)
    assert other.closed
    assert not controller.closed
    with pytest.raises(pw.LostError, match="let go"):
        z.result()
    np.testing.assert_array_equal(f(y).result(), v * 4)


def test_pythons_settings_are_others_while_a_controller_has_threads_and_restored_after_the_last(
    fresh_python,
) -> None:
    done = fresh_python(
        """
        import gc, sys, pathways_nb as pw
        sys.setswitchinterval(4e-3)
        usual = gc.get_threshold()
        seldom = (20_000, *usual[1:])
        def use(c): return c, pw.put(1.0, on=pw.virtual_slice(1)).result()
        outer, _ = use(pw.attach("cpu", islands=1, devices_per_island=1))
        assert (sys.getswitchinterval(), gc.get_threshold()) == (5e-4, seldom)
        with pw.attach("cpu", islands=1, devices_per_island=2) as inner:
            use(inner)
            inner.reset()
            assert sys.getswitchinterval() == 5e-4
        assert (sys.getswitchinterval(), gc.get_threshold()) == (5e-4, seldom), "the outer one has them still"
        outer.close()
        outer.close()
        assert (sys.getswitchinterval(), gc.get_threshold()) == (4e-3, usual)
        last, _ = use(pw.attach("cpu", islands=1, devices_per_island=1))
        sys.setswitchinterval(2e-3)
        last.close()
        assert sys.getswitchinterval() == 2e-3, "what somebody has set meanwhile stays"
        assert gc.get_threshold() == usual
        with pw.attach("sim:tpu_v3:1x2"):
            assert (sys.getswitchinterval(), gc.get_threshold()) == (2e-3, usual)
        for chosen in ((0, 10, 10), (90_000, 5, 5)):
            gc.set_threshold(*chosen)
            with pw.attach("cpu", islands=1, devices_per_island=1) as other:
                use(other)
                assert gc.get_threshold() == chosen, "switched off, or seldom enough"
            assert gc.get_threshold() == chosen
        """
    )
    assert done.returncode == 0, done.stderr


def test_with_blocks_nest(controller) -> None:
    f = double(1)
    with pw.attach("cpu", islands=1, devices_per_island=1), pw.attach("cpu", islands=1, devices_per_island=2) as inner:
        assert repr(inner) == "<controller cpu: 1 island × 2 devices, parallel dispatch>"
        np.testing.assert_array_equal(f(v).result(), v * 2)
    assert pw.attach("cpu", islands=2, devices_per_island=4) is controller
    np.testing.assert_array_equal(f(v).result(), v * 2)


def test_with_restores_after_an_error(controller) -> None:
    with pytest.raises(ZeroDivisionError), pw.attach("cpu", islands=1, devices_per_island=1):
        1 / 0  # noqa: B018
    np.testing.assert_array_equal(double()(v).result(), v * 2)
    assert pw.attach("cpu", islands=2, devices_per_island=4) is controller


def test_with_the_current_one_changes_nothing(controller) -> None:
    with pw.attach("cpu", islands=2, devices_per_island=4) as same:
        assert same is controller
        y = double()(v)
    assert not controller.closed
    np.testing.assert_array_equal(y.result(), v * 2)


def test_with_a_controller_that_is_set_aside_or_closed_is_refused(controller) -> None:
    text = r"it is not the current controller, and its devices have been let go or set aside"
    with pw.attach("cpu", islands=1, devices_per_island=2) as other:
        with pytest.raises(pw.NotAttachedError, match=text), controller:
            pass
        assert pw.attach("cpu", islands=1, devices_per_island=2) is other
    with pytest.raises(pw.NotAttachedError, match=text), other:
        pass
    assert (double(4)(v[:8]).result() == 2 * v[:8]).all()


def test_a_node_keeps_its_own_error_when_its_devices_are_let_go(controller) -> None:
    with pw.attach("cpu", islands=1, devices_per_island=2):
        place = pw.virtual_slice(2)
        y = pw.jit(doomed, on=place)(v[:6])
        with pytest.raises(pw.NodeError, match="doomed"):
            y.result()
    with pytest.raises(pw.NodeError, match=r"doomed.*ValueError: out of range"):
        y.result()


def doomed(x: jax.Array) -> jax.Array:
    def fail(x: np.ndarray) -> np.ndarray:
        raise ValueError("out of range")

    return jax.pure_callback(fail, x, x)


def test_two_open_controllers_never_hold_the_same_devices(controller) -> None:
    with (
        pw.attach("cpu", islands=2, devices_per_island=4, dispatch="sequential") as one,
        pw.attach("cpu", islands=2, devices_per_island=4, pin=False) as two,
    ):
        assert len(ids(controller) | ids(one) | ids(two)) == 24


def test_clients_are_lent_from_a_shelf(controller) -> None:
    with pw.attach("cpu", islands=2, devices_per_island=2) as one:
        first = ids(one)
    for _ in range(3):
        with pw.attach("cpu", islands=2, devices_per_island=2) as again:
            assert ids(again) == first


def test_reset_frees_everything_and_keeps_the_devices(controller, quiet) -> None:
    f = double()
    y = f(v)
    y.result()
    before = ids(controller)
    pw.reset()
    assert controller.machine.store.buffers == {}
    assert controller.resources.placements == {}
    assert len(controller.record.events()) == 0
    with pytest.raises(pw.LostError) as error:
        y.result()
    assert GONE in str(error.value)
    np.testing.assert_array_equal(f(v).result(), v * 2)
    assert ids(controller) == before
    del y
    quiet(controller)
    assert len(controller.machine.store.buffers) == 0


def test_futures_from_before_a_reset_release_nothing_of_after(controller, quiet) -> None:
    f = double()
    old = [f(v + i) for i in range(5)]
    pw.reset()
    new = [f(v + i) for i in range(5)]
    pw.wait(new)
    del old
    quiet(controller)
    assert [y.result()[0] for y in new] == [0, 2, 4, 6, 8]


def test_reset_while_programs_are_under_way(controller) -> None:
    f = double()
    y = v
    for _ in range(30):
        y = f(y)
    pw.reset()
    with pytest.raises((pw.LostError, pw.CancelledError)):
        y.result()
    np.testing.assert_array_equal(f(v).result(), v * 2)


def test_places_and_programs_serve_every_controller(controller) -> None:
    left, right = pw.virtual_slice(2), pw.virtual_slice(2)
    a = pw.jit(lambda v: v * 2, on=left, in_shardings=pw.P("x"))
    b = pw.jit(lambda v: v + 1, on=right, in_shardings=pw.P("x"))
    traces = []
    f = pw.program(lambda v: (traces.append(1), b(a(v)))[1])
    np.testing.assert_array_equal(f(v).result(), v * 2 + 1)
    for options in ({"islands": 1, "devices_per_island": 2}, {"islands": 3, "devices_per_island": 2}):
        with pw.attach("cpu", **options):
            np.testing.assert_array_equal(f(v).result(), v * 2 + 1)
    assert len(traces) == 1


def test_one_island(controller) -> None:
    with pw.attach("cpu", islands=1, devices_per_island=4) as one:
        a, b = double(2), double(2)
        np.testing.assert_array_equal(pw.program(lambda v: b(a(v)))(v).result(), v * 4)
        assert [str(p) for p in one.resources.placements.values()] == ["island 0, dev 0–1", "island 0, dev 2–3"]


def test_without_pinning_a_line_says_that_islands_take_turns(controller, capsys) -> None:
    with pw.attach("cpu", islands=2, devices_per_island=2, pin=False) as free:
        np.testing.assert_array_equal(double(2)(v).result(), v * 2)
        assert "pinned" not in free.status()
    assert "they take turns on the cores they share" in capsys.readouterr().out


def test_without_the_affinity_call_everything_works(controller, monkeypatch, capsys) -> None:
    """macOS has none."""
    monkeypatch.delattr(os, "sched_getaffinity")
    monkeypatch.delattr(os, "sched_setaffinity")
    with pw.attach("cpu", islands=2, devices_per_island=1):
        a, b = double(1, island=0), double(1, island=1)
        np.testing.assert_array_equal(pw.program(lambda v: b(a(v)))(v).result(), v * 4)
    assert "Islands are not pinned" in capsys.readouterr().out


def test_without_proc_and_priorities_everything_works(controller, monkeypatch) -> None:
    def no(*args):
        raise FileNotFoundError("/proc")

    monkeypatch.setattr(os, "listdir", no)
    monkeypatch.delattr(os, "setpriority")
    with pw.attach("cpu", islands=1, devices_per_island=3):
        np.testing.assert_array_equal(double(1)(v).result(), v * 2)


def test_one_core(controller, monkeypatch, capsys) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {0})
    assert local_islands._cores(2) == [(), ()]
    with pw.attach("cpu", islands=2, devices_per_island=3):
        np.testing.assert_array_equal(double(3)(v[:6]).result(), v[:6] * 2)
    assert "(1 cores for 2 islands)" in capsys.readouterr().out


def test_pinning_shares_out_only_usable_cores(monkeypatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: {2, 3, 5, 7, 11})
    for pid in range(5):
        monkeypatch.setattr(os, "getpid", lambda pid=pid: pid)
        shares = local_islands._cores(2)
        assert [len(share) for share in shares] == [2, 2]
        assert not set(shares[0]) & set(shares[1])
        assert set(shares[0]) | set(shares[1]) <= {2, 3, 5, 7, 11}
    assert local_islands._cores(1) == [()]
    assert local_islands._cores(6) == [()] * 6


def test_the_callers_affinity_and_environment_are_left_alone(controller, monkeypatch) -> None:
    monkeypatch.setenv("PJRT_NPROC", "3")
    before = os.sched_getaffinity(0)
    maker = local_islands._client_maker()
    local_islands._make_client(maker, 1, (min(before),))
    assert os.sched_getaffinity(0) == before
    assert os.environ["PJRT_NPROC"] == "3"


def test_without_a_client_maker_and_too_few_devices_the_error_tells_the_line(controller, monkeypatch) -> None:
    jax.devices()
    monkeypatch.setattr(local_islands, "_client_maker", lambda: None)
    with pw.attach("cpu", islands=2, devices_per_island=3):
        with pytest.raises(pw.PlaceError) as error:
            double(3)(v[:6])
        assert str(error.value) == (
            "attach(islands=2, devices_per_island=3) needs 6 CPU devices, JAX has 1 and has started already. Restart "
            'the kernel and run this line first: jax.config.update("jax_num_cpu_devices", 6).'
        )


def test_nothing_attached(fresh_python) -> None:
    done = fresh_python("""
    import numpy as np, pathways_nb as pw
    f = pw.jit(lambda v: v, on=pw.virtual_slice(2))
    for call in (lambda: f(np.ones(2)), lambda: pw.put(1.0, on=f.place), lambda: pw.program(f)(np.ones(2))):
        try:
            call()
        except pw.NotAttachedError as error:
            print(error)
    pw.reset()
    pw.attach("auto")
    pw.attach("auto")  # nothing changes, nothing is said
    print(f(np.ones(2)).result())
    """)
    line = 'nothing is attached: call pw.attach("auto") first (or pw.attach("cpu", islands=2, devices_per_island=4)).'
    chose = 'attached cpu: 2 islands × 4 devices; for other numbers: pw.attach("cpu", islands=2, devices_per_island=8)'
    assert done.stdout.splitlines() == [line] * 3 + [chose, "[1. 1.]"], done.stderr[-2000:]


def test_one_client_where_there_is_no_client_maker(fresh_python) -> None:
    done = fresh_python("""
    import numpy as np, jax, jax.numpy as jnp, pathways_nb as pw
    from pathways_nb.runtime import local_islands
    local_islands._client_maker = lambda: None
    controller = pw.attach("cpu", islands=2, devices_per_island=4)
    a = pw.jit(lambda v: v * 2, on=pw.virtual_slice(4), in_shardings=pw.P("x"))
    b = pw.jit(lambda v: v + 1, on=pw.virtual_slice(4), in_shardings=pw.P("x"))
    f = pw.program(jax.value_and_grad(lambda v: jnp.sum(b(a(v)) * a(v))))
    v = np.arange(8, dtype=np.float32)
    loss, grads = pw.get(f(v))
    assert loss == ((v * 2 + 1) * v * 2).sum() and (grads == 8 * v + 2).all()
    print(len({d.client for i in controller.driver.attachment.islands for d in i.devices}))
    """)
    note = "This JAX cannot make a client per island: islands will take turns."
    assert (done.returncode, done.stdout) == (0, f"{note}\n1\n"), done.stderr[-2000:]


ACCELERATORS = """
    import numpy as np, jax, jax.numpy as jnp
    jax.config.update("jax_num_cpu_devices", 8)
    import pathways_nb as pw
    from pathways_nb.runtime import device_facts
    from tests.support.closeness import close
    {faked}
    {attach}
    v = np.arange(8, dtype=np.float32)
    def on(place, fn): return pw.jit(fn, on=place, in_shardings=pw.P("x"), out_shardings=pw.P("x"))

    # Figure 2
    a, b, c = (on(pw.virtual_slice(2), fn) for fn in (lambda x: x * 2, lambda x: x + 1, lambda x: x / 2))
    @pw.program
    def f(v):
        x = a(v); y = b(x); z = a(c(x))
        return y, z
    y, z = f(np.array([1.0, 2.0]))
    assert (list(y.result()), list(z.result())) == ([3.0, 5.0], [2.0, 4.0])

    # a gradient over islands of unequal size, and per-shard code
    p, q = pw.virtual_slice(4, island={wide}), pw.virtual_slice(2, island={narrow})
    one, two = on(p, lambda v: jnp.sin(v) * 3), on(q, lambda h: h * h)
    g = pw.program(jax.value_and_grad(lambda v: two(one(v)).sum()))
    loss, grads = g(v)
    plain = jax.value_and_grad(lambda v: ((jnp.sin(v) * 3) ** 2).sum())(v)
    close((loss, grads), plain)
    total = pw.shard_map(lambda s: jax.lax.psum(s.sum(), "x"), on=p, in_specs=pw.P("x"), out_specs=pw.P())
    assert total(v) .result() == 28

    # loose calls
    with pw.record() as run:
        w = two(one(v))
    close(w, (np.sin(v) * 3) ** 2)
    assert len(run.events.of_kind("compute")) == 2
    text = controller.status()
    for island in controller.driver.attachment.islands:
        print(island.index, [device.id for device in island.devices])
    print(repr(controller))
    assert "in use" not in text and "island 1" in text
    assert len(set(d.client for i in controller.driver.attachment.islands for d in i.devices)) == 1
"""


def test_accelerators_grouped_by_slice_index(fresh_python) -> None:
    """Ids neither dense nor in order, slices of unequal size, no ``memory_stats``."""
    done = fresh_python(ACCELERATORS.format(
        faked="""order = [5, 0, 7, 2, 6, 1]
    device_facts.found_devices = lambda: ("gpu", [jax.devices("cpu")[i] for i in order])
    device_facts.slice_index = lambda device: {5: 40, 0: 40, 7: 40, 2: 40, 6: 7, 1: 7}[device.id]""",
        attach='controller = pw.attach("auto")', wide=1, narrow=0,
    ))  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    chose = 'attached gpu: 2 islands × 2 + 4 devices; for virtual CPU devices: pw.attach("cpu")'
    assert done.stdout.splitlines() == [
        chose, "0 [6, 1]", "1 [5, 0, 7, 2]", "<controller gpu: 2 islands × 2 + 4 devices, parallel dispatch>",
    ]  # fmt: skip


def test_accelerators_grouped_by_the_users_map(fresh_python) -> None:
    done = fresh_python(ACCELERATORS.format(
        faked='device_facts.found_devices = lambda: ("gpu", jax.devices("cpu"))',
        attach='controller = pw.attach("gpu", islands=[[0, 2, 5, 7], [1, 3]])', wide=0, narrow=1,
    ))  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[:2] == ["0 [0, 2, 5, 7]", "1 [1, 3]"]


def test_accelerators_in_one_island_of_unequal_numbers(fresh_python) -> None:
    done = fresh_python(ACCELERATORS.format(
        faked='device_facts.found_devices = lambda: ("tpu", jax.devices("cpu"))',
        attach='controller = pw.attach("tpu", islands=2)', wide=0, narrow=1,
    ))  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines()[-1] == "<controller tpu: 2 islands × 4 devices, parallel dispatch>"


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        (3, "8 devices do not divide into 3 islands"),
        (0, "8 devices do not divide into 0 islands"),
        ([[0, 1], [1, 2]], "device 1 is named twice, and a device is part of one island"),
        ([[0, 8]], "8 is none of the positions 0 to 7 of the 8 devices"),
        ([[-1]], "-1 is none of the positions 0 to 7 of"),
    ],
)
def test_a_map_that_does_not_fit_the_accelerators(groups, text) -> None:
    with pytest.raises(pw.PlaceError, match=text):
        accelerators.attach_accelerators("gpu", [FakeDevice(at) for at in range(8)], groups)


def test_two_open_controllers_never_hold_the_same_accelerators(fresh_python) -> None:
    done = fresh_python("""
    import jax
    jax.config.update("jax_num_cpu_devices", 4)
    import pathways_nb as pw
    from pathways_nb.runtime import device_facts
    device_facts.found_devices = lambda: ("gpu", jax.devices("cpu"))
    one = pw.attach("gpu")
    f = pw.jit(lambda v: v, on=pw.virtual_slice(2))
    f(1.0).result()
    ids = lambda c: {d.id for i in c.driver.attachment.islands for d in i.devices}
    try:
        with pw.attach("gpu", islands=2):
            raise SystemExit("both hold them")
    except pw.PlaceError as error:
        assert "held by the controller outside the block" in str(error) and "without `with`" in str(error)
    assert f(1.0).result() == 1
    """)
    assert done.returncode == 0, done.stderr[-1000:]


@pytest.mark.parametrize(("said", "meant"), [("cuda", "gpu"), ("ROCm", "gpu"), ("proxy", "auto")])
def test_names_of_platforms_are_told_as_kinds(said, meant) -> None:
    with pytest.raises(pw.UsageError, match=rf"attach\('{said}'\): .* pw\.attach\(\"{meant}\"\)\."):
        pw.attach(said)
