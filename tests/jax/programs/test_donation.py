"""Donation: memory is taken over where it may be, and never where somebody else still reads it."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

import pathways_nb as pw
from tests.support.closeness import close
from tests.support.computations import HANG_GUARD, first_shard, on, v
from tests.support.waiting import dispatchers, held_back, until, waiters


def test_donated_arguments_are_taken_over(left) -> None:
    step = on(left, lambda w: w + 1)
    f = pw.program(lambda w: step(w), donate_argnums=0)
    start = step(v - 1)  # what was put may share the user's own memory, which cannot be taken over
    memory = first_shard(start)
    out = f(start)
    assert first_shard(out) == memory
    close(out, v + 1)


def test_donating_by_name_in_trees_and_in_a_loop(a, left) -> None:
    step = pw.jit(lambda p, x: jax.tree.map(lambda w: w + x.sum(), p), on=left)

    @functools.partial(pw.program, donate_argnames="params")
    def f(params, x):
        return step(params, x)

    params = {"w": v, "b": [v + 1]}
    for _ in range(20):
        params = f(params, v)
    close(params, {"w": v + 20 * v.sum(), "b": [v + 1 + 20 * v.sum()]})


def test_nodes_traced_earlier_read_a_donated_argument_first(a, left) -> None:
    """``w`` is read by two programs already queued and by an earlier node of the same program, then taken over."""
    slow = on(left, lambda w: jax.lax.fori_loop(0, 200, lambda i, x: jnp.sin(x) + x * 0, w))
    take = on(left, lambda w: w - 1, donate_argnums=0)
    w = pw.put(v, on=left, shardings=pw.P("x"))
    before = [slow(w), slow(w)]
    f = pw.program(lambda w: (a(w), take(w)), donate_argnums=0)
    out = f(w)
    close(out, (v * 2, v - 1))
    expected = jax.lax.fori_loop(0, 200, lambda i, x: jnp.sin(x), v)
    close(before, [expected, expected])


def test_donating_numpy_leaves_the_users_array_alone(left) -> None:
    mine = v.copy()
    step = on(left, lambda w: w + 1)
    f = pw.program(lambda w: step(w), donate_argnums=0)
    close(f(mine), v + 1)
    assert mine.tolist() == v.tolist()


def test_a_donated_argument_may_be_used_at_two_places(fresh_python) -> None:
    done = fresh_python(
        HANG_GUARD
        + """
    f = pw.program(lambda w: (a(w), b(w)), donate_argnums=0)
    w = pw.put(v, on=left, shardings=pw.P("x"))
    x, y = f(w)
    assert x.result().tolist() == (v * 2).tolist() and y.result().tolist() == (v + 1).tolist()
    """
    )
    assert done.returncode == 0, done.stderr[-500:]


def test_a_donated_argument_may_be_used_by_two_slices_that_share_devices(fresh_python) -> None:
    done = fresh_python(
        HANG_GUARD
        + """
    c = pw.jit(lambda v: v - 1, on=pw.virtual_slice(4, island=0), in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    f = pw.program(lambda w: (a(w), c(w)), donate_argnums=0)
    x, y = f(pw.put(v, on=left, shardings=pw.P("x")))
    assert x.result().tolist() == (v * 2).tolist() and y.result().tolist() == (v - 1).tolist()
    """
    )
    assert done.returncode == 0, done.stderr[-500:]


def test_a_future_passed_twice_and_donated_is_refused(fresh_python) -> None:
    done = fresh_python(
        HANG_GUARD
        + """
    f = pw.program(lambda w, u: a(w) + u, donate_argnums=0)
    w = pw.put(v, on=left, shardings=pw.P("x"))
    try:
        f(w, w).result()
    except pw.UsageError as error:
        assert "donated" in str(error) and "twice" in str(error), error
    else:
        raise SystemExit("not refused")
    assert w.result().tolist() == v.tolist()
    """
    )
    assert done.returncode == 0, done.stderr[-500:] + done.stdout


def test_a_donor_on_another_island_is_woken_by_the_last_reader(fresh_python) -> None:
    done = fresh_python(
        HANG_GUARD
        + """
    spin = pw.jit(lambda v: jax.lax.fori_loop(0, 60, lambda i, m: jnp.tanh(m @ m), v), on=left)
    spin(np.ones((256, 256), np.float32)).result()
    read = pw.program(lambda v, m: (a(v), spin(m)))
    take = pw.program(lambda v: b(v), donate_argnums=0)
    w = pw.put(v, on=left, shardings=pw.P("x"))
    read(w, np.ones((256, 256), np.float32)); take(v)
    pw.wait(w)
    w = pw.put(v, on=left, shardings=pw.P("x"))
    for _ in range(30):
        spin(np.ones((256, 256), np.float32))
    a(w)
    assert take(w).result().tolist() == (v + 1).tolist()
    """
    )
    assert done.returncode == 0, done.stderr[-500:]


def test_a_result_is_taken_over_only_when_its_own_program_has_sent_it_elsewhere(controller, a, b) -> None:
    sends = pw.program(lambda w: (lambda y: (y, a(y)))(b(w)))
    takes = pw.program(lambda y: b(y), donate_argnums=0)
    pw.wait([sends(v), takes(b(v))])  # compiled
    with held_back(dispatchers(controller)[0]):
        a(v)
        result, sent = sends(v)
        taken = takes(result)
        until(lambda: waiters(controller.driver.launched) > 0 or taken.done())
    close((sent, taken), ((v + 1) * 2, v + 2))


def test_donating_a_result_that_is_an_argument_leaves_the_argument_alone(a, left) -> None:
    kept = pw.put(v, on=left, shardings=pw.P("x"))
    passed, _ = pw.program(lambda w: (w, a(w)))(kept)
    close(pw.program(lambda w: a(w), donate_argnums=0)(passed), v * 2)
    close(kept, v)


def test_donating_one_of_two_equal_results_leaves_the_other_alone(a, left) -> None:
    one, two = pw.program(lambda w: (lambda y: (y, y))(a(w)))(v)
    close(pw.program(lambda w: a(w), donate_argnums=0)(one), v * 4)
    close(two, v * 2)


def test_one_array_under_two_names_is_copied_before_it_is_taken_over_even_where_it_moves(left) -> None:
    """On the devices of both places what moved is the same memory still."""
    part = pw.virtual_slice(1, island=0)
    twice = pw.jit(lambda w: w * 2, on=part)
    whole = pw.jit(lambda w: w.sum() + w, on=left)
    hand_back = pw.program(lambda w: (twice(w), w, w))
    both = pw.program(lambda x, y: (whole(y), twice(x), x), donate_argnums=(0, 1))
    for _ in range(5):
        _, x, y = hand_back(twice(v / 2))
        close(both(x, y), (v.sum() + v, v * 2, v))
