"""Change under way: devices that go and come, faults made on purpose, and who is touched by them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import pathways_nb as pw
from tests.conftest import settled
from tests.support.computations import on
from tests.support.waiting import dispatchers

v = np.arange(8.0, dtype=np.float32)


def split(fn: Any, place: pw.VirtualSlice) -> pw.Computation:
    return pw.jit(fn, on=place, in_shardings=pw.P("x"), out_shardings=pw.P("x"))


def test_an_injected_fault_fails_its_dependents_and_nobody_else(controller, left, right) -> None:
    a, b, c = (on(left, lambda x: x + 1), on(right, lambda x: x * 2), on(left, lambda x: x - 1))
    for fn, name in ((a, "a"), (b, "b"), (c, "c")):
        fn.name = name

    @pw.program
    def both(x):
        y = a(x)
        return b(y), c(y)

    with pw.inject_fault("b") as fault:
        bad, good = both(v)
        with pytest.raises(
            pw.NodeError, match=r"b of both, run 0, failed on right \(island 1, devices 0–3\).*injected fault 1 of"
        ):
            bad.result()
        np.testing.assert_array_equal(good.result(), v)
        with pytest.raises(pw.NodeError, match="b of both, run 0"):
            a(bad).result()
        again, _ = both(v)
        np.testing.assert_array_equal(again.result(), (v + 1) * 2)
    assert fault.hits == 1


def test_faults_know_clients_and_let_some_pass(controller, left) -> None:
    add = pw.program(on(left, lambda x: x + 1), name="add")
    add(v).wait()
    outcomes: dict[str, list[bool]] = {"ann": [], "bob": []}
    with pw.inject_fault(client="ann", after=1, times=2):
        for _ in range(4):
            for name, seen in outcomes.items():
                with pw.client(name):
                    try:
                        add(v).result()
                        seen.append(True)
                    except pw.NodeError:
                        seen.append(False)
    assert outcomes == {"ann": [True, False, False, True], "bob": [True] * 4}
    with pytest.raises(pw.UsageError, match="times must be a whole number of at least 1"):
        pw.inject_fault(times=0)


def test_a_lost_island_takes_its_data_and_programs_move(controller, right) -> None:
    left = pw.virtual_slice(4, name="left")
    double, add = split(lambda x: x * 2, left), split(lambda x: x + 1, right)

    @pw.program
    def f(x):
        return add(double(x))

    mine = pw.put(v, on=left, shardings=pw.P("x"))
    theirs = f(mine)
    np.testing.assert_array_equal(theirs.result(), v * 2 + 1)
    settled(controller)
    controller.remove(island=0)
    with pytest.raises(
        pw.LostError, match=r"put on left \(test_elasticity.py:\d+\) lay only on island 0, dev 0–3, which was"
    ):
        mine.result()
    np.testing.assert_array_equal(theirs.result(), v * 2 + 1)
    with pytest.raises(pw.LostError, match="put on left"):
        f(mine).result()
    np.testing.assert_array_equal(f(v).result(), v * 2 + 1)  # lowered again: both places lie on island 1 now
    assert controller.resources.placements[left.serial].island == 1
    assert "lost: island 0, dev 0–3" in controller.status()
    assert controller.add(island=0) == 0
    elsewhere = pw.virtual_slice(4, island=0)
    np.testing.assert_array_equal(split(lambda x: x - 1, elsewhere)(v).result(), v - 1)


def test_losing_one_device_keeps_the_others(controller) -> None:
    two = pw.virtual_slice(2, island=0, name="two")
    wide = pw.virtual_slice(4, island=0, name="wide")
    kept, gone = pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=0)
    a, b = pw.put(v, on=kept, shardings=pw.P("x")), pw.put(v, on=gone, shardings=pw.P("x"))
    lost = controller.resources.placements[gone.serial]
    controller.remove(island=0, first=lost.first, count=1)
    np.testing.assert_array_equal(a.result(), v)
    with pytest.raises(pw.LostError):
        b.result()
    np.testing.assert_array_equal(split(lambda x: x + 1, two)(v).result(), v + 1)
    with pytest.raises(pw.PlaceError, match=r"of which device \d of island 0 is lost\. "):
        split(lambda x: x + 1, wide)(v)


def test_a_program_under_way_on_lost_devices_fails_by_name_and_others_go_on(controller, left, right) -> None:
    slow = on(right, lambda x: x + 1)
    fast = split(lambda x: x + 1, left)

    @pw.program
    def crossing(x):
        y = slow(x)
        return fast(x), slow(y)

    for future in crossing(v):
        future.wait()
    dispatchers(controller)[1].runner.lost_devices = {2}  # what a remove does, without the new epoch
    here, there = crossing(v)
    with pytest.raises(pw.NodeError, match=r"crossing, run 1, failed on right .*device 2 of island 1 was lost"):
        there.result()
    np.testing.assert_array_equal(here.result(), v + 1)
    dispatchers(controller)[1].runner.lost_devices = set()


def test_an_island_more_runs_what_there_was_no_room_for(controller) -> None:
    wide = pw.virtual_slice(6, name="wide")
    with pytest.raises(pw.PlaceError, match="wide asks for 6 devices"):
        pw.put(v[:6], on=wide)
    added = controller.add(devices=6)
    assert added == 2
    assert repr(added) == "island 2 with 6 devices", "what a cell shows"
    assert f"{added}" == "2"
    np.testing.assert_array_equal(pw.put(v[:6], on=wide, shardings=pw.P("x")).result(), v[:6])
    with pw.record() as run:
        split(lambda x: x * 3, wide)(v[:6]).wait()
    assert set(run.events.of_kind("compute")["island"]) == {2}
    assert run.islands == (4, 4, 6)
    pw.reset()
    assert controller.islands == (4, 4)


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda c: c.remove(island=5), r"remove\(island=5\): there are 2 islands × 4 devices"),
        (lambda c: c.remove(island=1, first=3, count=2), r"island 1 has 4 devices, from 0 on"),
        (lambda c: c.add(island=7), r"add\(island=7\): there are 2 islands"),
        (lambda c: c.add(devices=0), r"^add\(devices=0\): a whole number of at least 1 is needed"),
        (lambda c: c.add(devices=7, island=0), r"add\(devices=7, island=0\): island 0 gets back its own devices"),
        (lambda c: c.remove(0, 1.5, 1), r"remove\(island=0, first=1.5, count=1\): island 0 has 4 devices, from 0 on"),
        (lambda c: c.remove("0"), r"remove\(island='0'\): there are 2 islands × 4 devices"),
        (lambda c: c.cancel("eve"), r"cancel\('eve'\): no client of that name has called anything; there are: none"),
        (lambda c: pw.inject_fault(place=c), r"inject_fault\(place=.*\): give the place's name, a text such as"),
        (
            lambda c: pw.inject_fault(times="3"),
            r"inject_fault\(times='3', .*times must be a whole number of at least 1",
        ),
        (lambda c: pw.inject_fault(island=7), r"inject_fault\(island=7\): there are 2 islands × 4 devices, numbered"),
    ],
)
def test_devices_that_there_are_none_of_are_refused(controller, call, text) -> None:
    with pytest.raises((pw.PlaceError, pw.UsageError), match=text):
        call(controller)


@pytest.mark.parametrize("more", [{"island": 1}, {"devices": 4}])
def test_devices_that_come_are_used_by_places_that_a_loss_had_moved(controller, more) -> None:
    one, two = pw.virtual_slice(4, name="one"), pw.virtual_slice(4, name="two")
    add, double = split(lambda x: x + 1, one), split(lambda x: x * 2, two)
    program = pw.program(lambda x: double(add(x)), name="p")

    def islands() -> list[int]:
        return [controller.resources.placements[place.serial].island for place in (one, two)]

    program(v).wait()
    assert islands() == [0, 1]
    controller.remove(island=1)
    kept = program(v)
    np.testing.assert_array_equal(kept.result(), (v + 1) * 2)
    assert islands() == [0, 0]
    added = controller.add(**more)
    np.testing.assert_array_equal(program(v).result(), (v + 1) * 2)
    assert islands() == [0, added]
    np.testing.assert_array_equal(kept.result(), (v + 1) * 2)
    np.testing.assert_array_equal(double(kept).result(), (v + 1) * 4)


def test_status_names_lost_devices_once_and_counts_in_words(controller, quiet) -> None:
    controller.remove(island=0, first=1, count=2)
    controller.remove(island=0, first=0, count=2)
    one = pw.put(v, on=pw.virtual_slice(1, island=1))
    quiet(controller)
    text = controller.status()
    assert text.count("lost:") == 1
    assert "lost: island 0, dev 0–2" in text
    assert "object store: 1 buffer, 32 B" in text
    del one


def test_a_put_lies_where_it_was_placed_though_devices_go_in_between(controller, monkeypatch) -> None:
    place, located = pw.virtual_slice(4, name="place"), controller.located

    def and_lose(where: Any) -> Any:
        found = located(where)
        controller.remove(island=found[0].island)
        return found

    monkeypatch.setattr(controller, "located", and_lose)
    assert pw.put(v, on=place).shape == v.shape
    assert controller.resources.placements == {}


def test_a_launch_that_never_came_to_be_is_in_the_record_and_what_was_skipped_is_not(controller, left, right) -> None:
    a, b, c = (on(place, lambda x: x + 1) for place in (left, right, left))
    for fn, name in ((a, "a"), (b, "b"), (c, "c")):
        fn.name = name
    chain = pw.program(lambda x: c(b(a(x))), name="chain")
    chain(v).wait()
    with pw.inject_fault("b"), pw.record() as run:
        y = chain(v)
    with pytest.raises(pw.NodeError):
        y.result()
    (failed,) = run.events.select(run.events.is_("status", "failed"))
    assert (failed["kind"], failed["name"], failed["island"], failed["devices"]) == ("compute", "b", 1, 4)
    assert failed["start"] == failed["end"] > 0
    assert sorted(run.events.of_kind("compute")["name"].tolist()) == ["a", "b"]
    assert "1 failed" in run.summary_line()


def test_an_island_added_within_a_recording_is_part_of_the_run(controller) -> None:
    wide = pw.virtual_slice(6, name="wide")
    with pw.record() as run:
        controller.add(devices=6)
        split(lambda x: x * 3, wide)(v[:6])
    assert run.islands == (4, 4, 6)
    assert len(run.hbm) == 3
    assert run.summary().utilisation[2] > 0


def test_a_fault_strikes_what_was_called_in_its_block_though_it_is_sent_later(controller, left) -> None:
    add = on(left, lambda x: x + 1)
    first = add(v)
    first.wait()
    with pw.inject_fault() as fault:
        second = add(v)
    third = add(v)
    assert fault.hits == 1
    np.testing.assert_array_equal(first.result(), v + 1)
    np.testing.assert_array_equal(third.result(), v + 1)
    with pytest.raises(pw.NodeError, match="injected fault 1 of at most 1"):
        second.result()


def test_a_place_whose_island_has_lost_devices_says_so(controller) -> None:
    pinned = pw.virtual_slice(4, island=0, name="pinned")
    add = pw.program(on(pinned, lambda x: x + 1), name="add")
    add(v).wait()
    controller.remove(0, 0, 2)
    with pytest.raises(
        pw.PlaceError,
        match=r"pinned asks for 4 devices of island 0, but there are .* devices 0–1 of island 0 are lost\. "
        r"Leave out island=0 to place it on another, ask for at most 2, or give back what was lost",
    ):
        add(v)


def test_the_record_says_when_devices_were_lost_and_back_and_what_was_lost_before(controller, left) -> None:
    add = pw.program(on(left, lambda x: x + 1), name="add")
    told = lambda run: [(event["kind"], event["name"]) for event in run.events.of_kind("lost", "back")]  # noqa: E731
    with pw.record() as first:
        controller.remove(1)
        add(v).wait()
        controller.add(island=1)
        controller.remove(1, first=2, count=2)
    assert told(first) == [("lost", "island 1 lost"), ("back", "island 1 back"), ("lost", "island 1, dev 2–3 lost")]
    with pw.record() as second:
        add(v).wait()
        controller.add(island=1)
        controller.add(island=1)
    assert told(second) == [("lost", "island 1, dev 2–3 lost"), ("back", "island 1 back")]
    lost, back = (second.events.of_kind(kind)["start"][0] for kind in ("lost", "back"))
    assert lost < second.events.of_kind("compute")["start"].min() < back
