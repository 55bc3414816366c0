"""User code beside a busy dispatcher, and JAX used before attach: the process survives. Each in a process of its own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

BUSY = """
    import faulthandler, threading, numpy as np, jax, jax.numpy as jnp, pathways_nb as pw
    faulthandler.dump_traceback_later(280, exit=True)
    {before}
    pw.attach("cpu", islands=2, devices_per_island=4)
    left, right = pw.virtual_slice(4, island=0), pw.virtual_slice(4, island=1)
    reduce = lambda v: v + jax.lax.psum(jnp.sum(v) * 0, "x") + 1
    a = pw.shard_map(reduce, on=left, in_specs=pw.P("x"), out_specs=pw.P("x"))
    b = pw.shard_map(reduce, on=right, in_specs=pw.P("x"), out_specs=pw.P("x"))
    step = pw.program(lambda v: b(a(b(a(v)))))
    v = np.zeros(64, np.float32)
    step(v).result()
    stop, ran = threading.Event(), threading.Event()
    count = 0

    def keep_busy():
        global count
        y = v
        while not stop.is_set():
            y = step(y)
            count += 1
            if count == 10:
                ran.set()
        assert (y.result() == 4 * count).all()
        print("the busy thread is done")

    thread = threading.Thread(target=keep_busy)
    thread.start()
"""


@pytest.mark.slow
def test_deep_eager_loops_beside_a_busy_dispatcher(fresh_python) -> None:
    """A 400-deep eager loop on a fetched value, and one on the live array of the very devices that are busy."""
    done = fresh_python(
        BUSY.format(before="")
        + """
    fetched = a(v).result()
    x = jnp.asarray(fetched)
    for _ in range(400):
        x = jnp.sin(x) + 1
    live = a(v).array()
    for _ in range(400):
        live = jnp.sin(live) + 1
    from tests.support.closeness import close
    close(live, x)
    ran.wait()
    stop.set()
    thread.join()
    print("survived")
    """
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-2:] == ["the busy thread is done", "survived"]


@pytest.mark.slow
def test_deep_eager_loops_with_collectives_on_a_live_array(fresh_python) -> None:
    done = fresh_python(
        BUSY.format(before="")
        + """
    live = a(v).array()
    for _ in range(400):
        live = live + jnp.sum(live) * 0
    assert (np.asarray(live) == 1).all()
    ran.wait()
    stop.set()
    thread.join()
    print("survived")
    """
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.splitlines()[-1] == "survived"


def test_jax_used_before_attach_keeps_working(fresh_python) -> None:
    done = fresh_python("""
    import numpy as np, jax, jax.numpy as jnp
    before = jnp.arange(8.0)
    f = jax.jit(lambda v: v * 2)
    assert f(before).sum() == 56
    import pathways_nb as pw
    controller = pw.attach("cpu", islands=2, devices_per_island=4)
    a = pw.jit(lambda v: v - v.mean(), on=pw.virtual_slice(4), in_shardings=pw.P("x"))
    assert a(before).result().sum() == 0
    assert f(before).sum() == 56
    assert len(jax.devices()) == 1
    ids = [d.id for island in controller.driver.attachment.islands for d in island.devices] + [jax.devices()[0].id]
    assert len(set(ids)) == 9, ids
    print(f(a(before).result()).sum())
    """)
    assert (done.returncode, done.stdout) == (0, "0.0\n"), done.stderr[-2000:]


def test_the_process_ends_while_programs_are_under_way(fresh_python) -> None:
    done = fresh_python(
        """
    import numpy as np, jax, jax.numpy as jnp, pathways_nb as pw
    pw.attach("cpu", islands=2, devices_per_island=4)
    a = pw.jit(lambda m: jax.lax.fori_loop(0, 50, lambda i, x: jnp.tanh(x @ x), m), on=pw.virtual_slice(4))
    y = np.ones((128, 128), np.float32)
    for _ in range(30):
        y = a(y)
    print("end")
    """
    )
    assert (done.returncode, done.stdout) == (0, "end\n"), done.stderr[-2000:]


def test_a_result_is_fetched_after_a_fork_safe_import(fresh_python) -> None:
    """Nothing starts threads or JAX when the package is only imported."""
    done = fresh_python("""
    import threading, pathways_nb as pw, jax
    assert threading.active_count() == 1, threading.enumerate()
    from jax._src import xla_bridge
    assert not xla_bridge.backends_are_initialized()
    pw.attach("cpu", islands=2, devices_per_island=2)
    pw.virtual_slice(2)
    assert not xla_bridge.backends_are_initialized()
    print("idle")
    """)
    assert (done.returncode, done.stdout) == (0, "idle\n"), done.stderr[-2000:]


def test_widgets_are_imported_only_when_something_is_shown(fresh_python: Callable[..., Any]) -> None:
    done = fresh_python("""
        import sys, pathways_nb
        print(sorted({"bokeh", "pathways_widgets", "ray", "ipywidgets", "optax"} & set(sys.modules)))
    """)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr
