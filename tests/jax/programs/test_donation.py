"""Donation: memory is taken over where it may be, and never where somebody else still reads it."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax

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


def test_the_arguments_that_nodes_take_over_are_those_that_were_donated(left) -> None:
    """The first argument is donated, and the last node alone reads it: positions of arguments and steps differ.

    Arguments that lie at their places are used all at once, of which this is asked before.
    """
    first, second = on(left, lambda a, b: a * b), on(left, lambda w, x: w + x)
    f = pw.program(lambda w, a, b: second(w, first(a, b)), donate_argnums=0)
    arguments = [first(v, v + shift) for shift in range(3)]
    compiled = f._compiled_plan(tuple(arguments), {})
    brings = compiled.brings_on(0)
    assert brings.arguments == tuple(compiled.plan.steps[step].argument for step in brings.steps)
    assert brings.arguments != tuple(sorted(brings.arguments))
    assert set(brings.taken) == compiled.taken_over == {0}
    assert not brings.again
    memory = first_shard(arguments[0])
    out = f(*arguments)
    assert first_shard(out) == memory
    close(out, v * v + v * (v + 1) * v * (v + 2))


def test_an_argument_that_two_runs_read_is_not_taken_over_before_both_have(left) -> None:
    """Many results of one call are read together, and share what is known of their readers."""
    make = pw.jit(lambda x: [x + shift for shift in range(12)], on=left)
    read = pw.jit(lambda xs: sum(xs), on=left)
    renew = pw.jit(lambda xs: [x * 0 for x in xs], on=left, donate_argnums=0)
    for _ in range(20):
        values = make(v)
        sums = [read(values), read(values[:6])]
        zeros = renew(values)
        close(sums, [12 * v + 66, 6 * v + 15])
        close(zeros, [v * 0] * 12)


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


SHARED_DEVICES = (
    HANG_GUARD
    + """
    P = pw.P("x")
    again = pw.virtual_slice(4, island=0)
    d = pw.jit(lambda v: v + 1, on=left, in_shardings=P, out_shardings=P, donate_argnums=0)
    h = pw.jit(lambda v: v * 3, on=again, in_shardings=P, out_shardings=P)
    dh = pw.jit(lambda v: v * 3, on=again, in_shardings=P, out_shardings=P, donate_argnums=0)
    s = v * 2 + 1
    """
)


def test_memory_that_two_places_share_is_taken_over_only_by_its_last_reader(fresh_python) -> None:
    done = fresh_python(
        SHARED_DEVICES
        + """
    for f, expected in (
        (lambda s: (h(s), d(s), h(s)), (s * 3, s + 1, s * 3)),
        (lambda s: (h(s), dh(s), d(s), a(s)), (s * 3, s * 3, s + 1, s * 2)),
        (lambda s: (b(s), dh(s)), (s + 1, s * 3)),
        (lambda s: (dh(s), s), (s * 3, s)),
    ):
        whole = pw.program(lambda x: f(d(a(x))))
        for _ in range(3):
            found = pw.get(whole(v))
            assert [x.tolist() for x in found] == [x.tolist() for x in expected], (found, expected)
    """
    )
    assert done.returncode == 0, done.stderr[-800:]


def test_the_last_reader_takes_memory_over_that_was_read_at_another_place_of_its_devices(a, left) -> None:
    again = pw.virtual_slice(4, island=0)
    large = jnp.zeros(1 << 18, jnp.float32)
    ends = on(left, lambda w: w + 1, donate_argnums=0)
    reads = on(again, lambda w: w[:8] * 3)
    last = pw.program(lambda w: (lambda s: (reads(s), ends(s)))(a(w)))
    early = pw.program(lambda w: (lambda s: (ends(s), reads(s)))(a(w)))
    last_peak, early_peak = (max(peak.others for peak in f.peaks(large)) for f in (last, early))
    assert early_peak - last_peak > large.nbytes // 5  # a shard of it, less the few bytes that are read


def test_an_array_of_the_users_stays_when_what_was_made_of_it_is_donated(a, left) -> None:
    again, part = pw.virtual_slice(4, island=0), pw.virtual_slice(1, island=0)
    takes, takes_part = (pw.program(lambda w, c=c: c(w), donate_argnums=0) for c in (a, on(part, lambda w: w * 2)))
    made = a(v)
    mine = made.array()
    whole = pw.jit(lambda w: w * 1, on=left, out_shardings=pw.P())(v).array()
    for place in (left, again):
        close(takes(pw.put(mine, on=place, shardings=pw.P("x"))), v * 4)
    close(takes_part(pw.put(whole, on=part)), v * 2)
    close(takes(mine), v * 4)
    close(pw.program(lambda y, w: (a(y), a(w)), donate_argnums=0)(a(v), mine), (v * 4, v * 4))
    close((made, mine, whole), (v * 2, v * 2, v))
    close(takes(made), v * 4)
    close(mine, v * 2)


def test_one_array_may_be_donated_and_read_in_one_call(fresh_python) -> None:
    done = fresh_python(
        SHARED_DEVICES
        + """
    mine = a(v).array()
    found = pw.get(pw.program(lambda x, y: (d(x), a(y), h(y)), donate_argnums=0)(mine, mine))
    assert [x.tolist() for x in found] == [(v * 2 + 1).tolist(), (v * 4).tolist(), (v * 6).tolist()], found
    """
    )
    assert done.returncode == 0, done.stderr[-800:]


def test_a_donated_adam_state_goes_through_places_that_share_devices(left) -> None:
    """Two layers on the same devices, one on half of them and one on another island; loss and steps as in plain JAX."""
    again, half = pw.virtual_slice(4, island=0), pw.virtual_slice(2, island=0)
    places = (left, again, half, pw.virtual_slice(4, island=1))
    keys = jax.random.split(jax.random.key(0), 5)
    start = [jax.random.normal(key, (16, 16)) / 4 for key in keys[:4]]
    x = jax.random.normal(keys[4], (8, 16))
    optimizer = optax.adam(1e-2)

    def step_of(layers):
        def loss(params, x):
            for layer, w in zip(layers, params, strict=True):
                x = layer(w, x) + x  # the sum is made where the layer is, of what the place before made
            return jnp.mean(x**2)

        def step(params, state, x):
            value, gradients = jax.value_and_grad(loss)(params, x)
            updates, state = optimizer.update(gradients, state, params)
            return optax.apply_updates(params, updates), state, value

        return step

    def layer(w, x):
        return jnp.tanh(x @ w)

    placed = [pw.jit(layer, on=p, in_shardings=(pw.P(), pw.P("x")), out_shardings=pw.P("x")) for p in places]
    ours = pw.program(step_of(placed), donate_argnums=(0, 1))
    plain = jax.jit(step_of([layer] * 4))
    expected = found = (start, optimizer.init(start))
    for _ in range(6):
        *expected, value = plain(*expected, x)
        *found, loss = ours(*found, x)
        close(loss, np.asarray(value), 1e-4)
    close(found, jax.tree.map(np.asarray, expected), 1e-4)
