"""Memory: peaks known before a program runs, back-pressure, owners, and what is freed when."""

from __future__ import annotations

import gc
import threading
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.controller.invariants import check_invariants
from pathways_nb.session import default_controller
from tests.conftest import settled
from tests.support.closeness import close
from tests.support.waiting import Unseen

KB = 1 << 10
block = np.ones((4, 4 * KB), np.float32)  # 64 KiB: on 4 devices 16 KiB each


@pytest.fixture
def small(watchdog: None) -> Iterator[Callable[..., pw.Controller]]:
    """Attach with a budget; afterwards nothing is held and the state is whole."""
    with pw.attach("cpu", islands=2, devices_per_island=2) as outside:
        made: list[pw.Controller] = []

        def attach(hbm: float | None, **options: Any) -> pw.Controller:
            made.append(pw.attach("cpu", islands=2, devices_per_island=4, hbm=hbm, **options))
            return made[-1]

        yield attach
        gc.collect()
        for controller in made:
            settled(controller)
            check_invariants(controller.machine)
            assert total(controller) == 0, "bytes are left"
            controller.close()
        del outside


def total(controller: pw.Controller) -> int:
    """Bytes held on the fullest device."""
    return max(max(island.totals) for island in controller.machine.memory.islands)


def split(fn: Callable[..., Any], on: pw.VirtualSlice, **options: Any) -> pw.Computation:
    return pw.jit(fn, on=on, in_shardings=pw.P("x"), out_shardings=pw.P("x"), **options)


def peak_of(controller: pw.Controller, program: pw.Program, *args: Any) -> int:
    """The highest peak that lowering computes."""
    assert controller is default_controller.get()
    return max(peak.bytes for peak in program.peaks(*args))


def test_memory_taken_over_is_counted_once(small) -> None:
    controller = small(None)
    left = pw.virtual_slice(4)
    keeps, takes = split(lambda x: x + 1, left), split(lambda x: x + 1, left, donate_argnums=0)
    both = [pw.program(lambda x, f=f: f(f(x))) for f in (keeps, takes)]
    x = pw.put(block, on=left, shardings=pw.P("x"))
    assert [peak_of(controller, p, x) // KB for p in both] == [48, 32]


def test_a_program_that_can_never_fit_is_refused_with_the_sizes(small) -> None:
    controller = small(40 * KB)
    left = pw.virtual_slice(4, name="left")
    double = split(lambda x: x * 2, left)
    program = pw.program(lambda x: double(double(x)), name="twice")
    text = (
        r"twice needs 49.2 KB on each device of island 0, dev 0–3, where there are 41 KB. Its peak is in .*: "
        r"inputs 16.4 KB, temporaries 0 B, intermediates and results 32.8 KB\. .* attach with a larger hbm="
    )
    with pytest.raises(pw.OutOfMemoryError, match=text):
        program(block)
    assert not controller.machine.calls
    assert double(block).result().shape == block.shape


# ---- back-pressure


def test_with_a_budget_of_the_largest_peak_everything_completes(small) -> None:
    unlimited = small(None)
    left, right = pw.virtual_slice(4), pw.virtual_slice(4)
    f, g = split(lambda x: x * 2, left), split(lambda x: x + 1, right)

    @pw.program
    def there_and_back(x):
        return f(g(f(x)))

    peak = peak_of(unlimited, there_and_back, block)
    controller = small(peak)
    x = block
    for _ in range(12):
        x = there_and_back(x)
    want = block
    for _ in range(12):
        want = (want * 2 + 1) * 2
    close(x, want, 1e-6)
    del x
    for _ in range(12):
        y = there_and_back(block)  # the result before is dropped only when this call has returned
    np.testing.assert_array_equal(y.result(), (block * 2 + 1) * 2)
    assert total(controller) <= peak
    del y


def test_waiting_for_memory_is_a_stall_that_says_who_holds_it(small) -> None:
    controller = small(40 * KB)
    left = pw.virtual_slice(4)
    double = split(lambda x: x * 2, left)
    double(block).wait()
    with pw.record() as run, Unseen(controller) as unseen:
        with pw.client("bob").acting():
            double(block)
        unseen.see_when_waited_for()
        with pw.client("cy"):
            double(block).wait()
    stalls = run.events.of_kind("stall")
    reasons = [e for e in stalls if e["name"].startswith("memory of island 0 held by")]
    assert reasons
    assert reasons[0]["client"] == "cy"
    assert "bob 32.8 KB" in reasons[0]["name"]
    assert len(run.events.of_kind("memory"))
    pw.client("bob").close()


def test_memory_that_only_handles_hold_is_an_error_that_names_them(small) -> None:
    controller = small(40 * KB)
    left = pw.virtual_slice(4, name="left")
    double = pw.program(split(lambda x: x * 2, left), name="double")
    kept = pw.put(block, on=left, shardings=pw.P("x"))
    y = double(block)
    with pytest.raises(pw.OutOfMemoryError, match="lacks") as error:
        y.result()
    text = str(error.value)
    assert "double, run 0, lacks 8.19 KB of the 41 KB per device of island 0, dev 0–3" in text
    assert "put on left (test_memory.py:" in text
    assert "(16.4 KB)" in text
    assert "del y" in text
    del kept
    assert double(block).result().sum() == 2 * block.sum()
    with pytest.raises(pw.OutOfMemoryError, match=r"put on left .* needs 16.4 KB on each device, and lacks"):
        _ = [pw.put(block, on=left, shardings=pw.P("x")) for _ in range(3)]
    del y
    assert "object store" in controller.status()


def test_a_client_has_a_limit_of_its_own(small) -> None:
    small(None)
    left = pw.virtual_slice(4)
    double = split(lambda x: x * 2, left)
    with pw.client("ann", memory=20 * KB):
        with pytest.raises(pw.OutOfMemoryError, match=r"there are 20.5 KB.*give 'ann' a larger memory="):
            double(block)
        with pytest.raises(pw.OutOfMemoryError):
            _ = [pw.put(block, on=left, shardings=pw.P("x")) for _ in range(2)]
    assert double(block).result().sum() == 2 * block.sum()


# ---- owners


def test_one_array_under_several_names_is_counted_once(small) -> None:
    controller = small(None)
    left = pw.virtual_slice(4)
    double = split(lambda x: x * 2, left)

    @pw.program
    def several(x: Any) -> Any:
        y = double(x)
        return x, y, y

    x = pw.put(block, on=left, shardings=pw.P("x"))
    same, first, second = several(x)
    second.wait()
    settled(controller)
    assert total(controller) == 2 * 16 * KB
    del x, first
    settled(controller)
    assert total(controller) == 2 * 16 * KB
    del second
    settled(controller)
    assert total(controller) == 16 * KB
    assert (same.result() == block).all()


def test_an_array_handed_on_and_on_is_counted_once(small) -> None:
    controller = small(40 * KB)
    left = pw.virtual_slice(4)
    double = split(lambda x: x * 2, left)
    pair = pw.program(lambda x: (x, double(x)), name="pair")
    names = [pw.put(block, on=left, shardings=pw.P("x"))]
    for _ in range(4):
        names.append(pair(names[-1])[0])
    pw.wait(names)
    settled(controller)
    assert total(controller) == 16 * KB
    for _ in range(4):
        names.pop(0)
        settled(controller)
        assert total(controller) == 16 * KB


def test_what_is_taken_over_but_not_alone_is_copied_only_where_there_is_room(small) -> None:
    small(40 * KB)
    left = pw.virtual_slice(4)
    double = split(lambda x: x * 2, left)
    pair = pw.program(lambda x: (x, double(x)), name="pair")
    step = pw.program(split(lambda x: x + 1, left, donate_argnums=0), name="step", donate_argnums=0)
    assert step(pw.put(block, on=left, shardings=pw.P("x"))).result()[0, 0] == 2
    gc.collect()
    x = pw.put(block, on=left, shardings=pw.P("x"))
    y, both = pair(x)
    with pytest.raises(pw.OutOfMemoryError, match=r"step, run 2, lacks 8\.19 KB"):
        step(y).result()
    del both
    assert (x.result() == block).all()


def test_what_a_client_handed_on_counts_for_who_still_has_it(small) -> None:
    controller = small(None)
    left = pw.virtual_slice(4)
    double = split(lambda x: x * 2, left)
    pair = pw.program(lambda x: (x, double(x)), name="pair")
    with pw.client("ann"):
        hers = pw.put(block, on=left, shardings=pw.P("x"))
        with pw.client("bob").acting():
            same, _ = pair(hers)
            same.wait()
        settled(controller)
        assert "pair, run 0, result 0 of bob: 65.5 KB\n" in controller.status()
    settled(controller)
    assert "pair, run 0, result 0 of bob: 65.5 KB, 16.4 KB on each of island 0" in controller.status()
    assert (same.result() == block).all()
    with pytest.raises(pw.LostError):
        hers.result()


def test_a_client_that_closes_leaves_nothing_and_its_results_say_so(small) -> None:
    controller = small(None)
    left = pw.virtual_slice(4)
    double = pw.program(split(lambda x: x * 2, left), name="double")
    with pw.client("ann"):
        hers = double(pw.put(block, on=left, shardings=pw.P("x")))
        assert hers.result()[0, 0] == 2
        settled(controller)
        held = "client ann: share 1, priority 0; 0 programs under way"
        assert held in controller.status()
        assert "of ann: 65.5 KB, 16.4 KB on each of island 0, dev 0–3" in controller.status()
    settled(controller)
    assert total(controller) == 0
    assert not controller.machine.store.buffers
    assert "ann" not in controller.machine.clients
    with pytest.raises(pw.LostError, match=r"double, run 0 belonged to the client 'ann', which has closed"):
        hers.result()


def test_a_thread_that_dies_frees_what_it_owned_and_gives_up_its_programs(small) -> None:
    controller = small(None)
    left = pw.virtual_slice(4)
    slow = split(lambda x: jax.lax.fori_loop(0, 300, lambda i, y: jnp.sin(y), x), left)
    slow(block).wait()
    kept = []

    def work() -> None:
        with pw.client("ann"):
            kept.extend(slow(block) for _ in range(20))
            raise ValueError

    thread = threading.Thread(target=work)
    before, threading.excepthook = threading.excepthook, lambda args: None
    try:
        thread.start()
        thread.join()
    finally:
        threading.excepthook = before
    settled(controller)
    assert total(controller) == 0
    with pytest.raises((pw.CancelledError, pw.LostError)):
        pw.wait(kept)


def test_a_failed_program_leaves_nothing(small) -> None:
    controller = small(None)
    left, right = pw.virtual_slice(4), pw.virtual_slice(4)

    def complain(x: Any) -> Any:
        raise ValueError("no")

    good = split(lambda x: x * 2, left)
    bad = pw.jit(lambda x: jax.pure_callback(complain, jax.ShapeDtypeStruct(x.shape, x.dtype), x), on=right)

    @pw.program
    def both(x):
        y = good(x)
        return y, bad(y)

    y, z = both(block)
    with pytest.raises(pw.NodeError):
        z.result()
    assert y.result()[0, 0] == 2
    del y
    settled(controller)
    assert total(controller) == 0  # though ``z`` is still held
    assert z is not None


def test_what_another_client_reads_lives_until_it_has(small) -> None:
    controller = small(None)
    left = pw.virtual_slice(4)
    slow = split(lambda x: jax.lax.fori_loop(0, 300, lambda i, y: jnp.sin(y), x), left)
    slow(block).wait()
    ann = pw.client("ann")
    with ann.acting():
        hers = slow(block)
    hers.wait()
    his = slow(hers)
    ann.close()
    assert his.result().shape == block.shape
    settled(controller)
    del his
    settled(controller)
    assert total(controller) == 0


def test_levels_on_the_record_add_up_and_the_budget_is_there(small) -> None:
    small(1 << 20)
    left = pw.virtual_slice(4)
    double = split(lambda x: x * 2, left)
    with pw.record() as run:
        x = pw.put(block, on=left, shardings=pw.P("x"))
        y = double(x)
        y.wait()
    (held,) = run.memory()
    assert set(held.total.tolist()) == {16 * KB, 32 * KB, 0}
    assert run.hbm == (1 << 20, 1 << 20)
    assert "peak memory 32.8 KB of 1.05 MB" in str(run.summary())
    del x, y


@pytest.mark.parametrize("hbm", [0, -1, 0.5, float("nan"), "16GB", True])
def test_a_budget_that_is_none_is_refused(hbm: Any) -> None:
    with pytest.raises(pw.UsageError, match=r"hbm=.*a number of bytes per device of at least 1"):
        pw.attach("cpu", hbm=hbm)


def test_a_value_that_never_fits_is_refused_at_once_and_says_whose_limit(small) -> None:
    small(40 * KB)
    left = pw.virtual_slice(4)
    with pytest.raises(pw.OutOfMemoryError, match=r"needs 65.5 KB .* more than the 41 KB that there are"):
        pw.put(np.tile(block, (4, 1)), on=left, shardings=pw.P("x"))
    with pw.client("ann", memory=10 * KB), pytest.raises(pw.OutOfMemoryError, match=r"more than the 10.2 KB that"):
        pw.put(block, on=left, shardings=pw.P("x"))


def test_an_equivalent_layout_is_not_counted_twice(small) -> None:
    small(32 * KB)
    left = pw.virtual_slice(4)
    double = split(lambda x: x * 2, left)
    x = pw.put(block, on=left, shardings=pw.P("x", None))
    assert double(x).result()[0, 0] == 2
    del x


def test_programs_of_clients_that_fit_one_at_a_time_all_end_well(small) -> None:
    small(40 * KB)
    left = pw.virtual_slice(4)
    double = pw.program(split(lambda x: x * 2, left), name="double")
    double(block).wait()
    failed: list[BaseException] = []

    def work(name: str) -> None:
        try:
            with pw.client(name):
                for _ in range(20):
                    double(block).wait()
        except pw.PathwaysError as error:
            failed.append(error)

    threads = [threading.Thread(target=work, args=(name,)) for name in "abcd"]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failed
