"""Copies and pickles: each object of the API works through them, or refuses in a line that names the way out."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import pathways_nb as pw

v = np.arange(8, dtype=np.float32)
HOW: dict[str, Callable[[Any], Any]] = {
    "copy": copy.copy,
    "deepcopy": copy.deepcopy,
    "deepcopy of a tree": lambda one: copy.deepcopy({"a": [one]})["a"][0],
    "pickle": lambda one: pickle.loads(pickle.dumps(one)),
    "old pickle": lambda one: pickle.loads(pickle.dumps(one, 0)),
}
copies = pytest.mark.parametrize("how", [name for name in HOW if "pickle" not in name])
pickles = pytest.mark.parametrize("how", [name for name in HOW if "pickle" in name])


@pytest.fixture
def things(controller, left) -> dict[str, Any]:
    """One of each, by name."""
    double = pw.jit(lambda x: x * 2, on=left)
    program = pw.program(lambda x: double(x), name="twice")
    return {
        "computation": double,
        "work": pw.work(1e-4, on=left, name="busy"),
        "program": program,
        "place": left,
        "future": program(v),
        "controller": controller,
        "tenant": pw.client("ann", share=2),
        "fault": pw.inject_fault("nothing"),
        "run": program.run(v),
    }


@copies
@pytest.mark.parametrize("name", ["computation", "work", "program", "place", "future", "controller", "tenant", "fault"])
def test_a_copy_of_what_there_is_one_of_is_itself(things, name, how) -> None:
    assert HOW[how](things[name]) is things[name]
    if name in ("computation", "program"):
        np.testing.assert_array_equal(HOW[how](things[name])(v).result(), v * 2)


REFUSED = {
    "computation": "<computation double on left> cannot be pickled: it holds Python functions and their traces. Define "
    "it in a module that the other process imports, and call it there.",
    "work": "<computation busy on left> cannot be pickled: it holds Python functions and their traces. Define it in a "
    "module that the other process imports, and call it there.",
    "program": "<program twice> cannot be pickled: it holds Python functions and their traces. Define it in a module "
    "that the other process imports, and call it there.",
    "controller": "<controller cpu: 2 islands × 4 devices, parallel dispatch> cannot be pickled: its devices are this "
    "process's. Call pw.attach(...) in the other process.",
    "tenant": "<client ann: share 2, priority 0> cannot be pickled: this process's controller knows it. Write "
    "pw.client(name, ...) in the other one.",
}


@pickles
@pytest.mark.parametrize("name", REFUSED)
def test_what_cannot_be_pickled_says_so(things, name, how) -> None:
    with pytest.raises(pw.UsageError) as error:
        HOW[how](things[name])
    assert str(error.value) == REFUSED[name]


@pytest.mark.parametrize("how", HOW)
def test_a_run_is_saved_and_loaded_instead(things, how) -> None:
    with pytest.raises(pw.UsageError) as error:
        HOW[how](things["run"])
    assert str(error.value) == (
        "run 'twice' cannot be copied or pickled: it may be under way, and holds results on devices. Write it with "
        "run.save(path) and read that with pw.load(path)."
    )
    if how != "copy":  # a shallow one holds the same runs
        with pytest.raises(pw.UsageError, match="^run 'twice' cannot be copied or pickled"):
            HOW[how](pw.compare(things["run"], things["run"]))


@pickles
def test_what_holds_devices_says_so_inside_a_tree(things, how) -> None:
    with pytest.raises(
        pw.UsageError, match=r"^<future twice: .*> cannot be pickled: save pw\.get\(tree\) or y\.result"
    ):
        HOW[how]([things["future"]])
    with pytest.raises(pw.UsageError, match=r"cannot be pickled: it waits for this process's devices"):
        HOW[how]([things["fault"]])


@pickles
def test_a_virtual_slice_unpickled_is_an_equal_request_of_its_own(controller, how) -> None:
    place = pw.virtual_slice((2, 2), axes=("data", "model"), island=1, name="grid")
    first, second = HOW[how]([place, place])
    assert first is second is not place
    assert (first.shape, first.axes, first.island, first.name) == ((2, 2), ("data", "model"), 1, "grid")
    assert first.serial != place.serial
    both = pw.program(lambda x: pw.jit(lambda x: x + 1, on=first)(pw.jit(lambda x: x * 2, on=place)(x)))
    np.testing.assert_array_equal(both(v).result(), v * 2 + 1)


SCHEDULES = [
    pw.schedule("1f1b", devices=3, microbatches=4),
    pw.schedule("dualpipe", devices=4, microbatches=8),
    pw.schedule("terapipe", devices=2, microbatches=2, token_slices=2),
    pw.Schedule.parse("0F0 0B0\n1F0 1B0", name="mine"),
]


@pytest.mark.parametrize("how", HOW)
@pytest.mark.parametrize("schedule", SCHEDULES, ids=lambda one: one.name)
def test_a_schedule_is_data(schedule, how) -> None:
    figures = schedule.bubble, schedule.peak, schedule.makespan(transfer=0.1)  # what was computed is no part of it
    again = HOW[how](schedule)
    assert again == schedule
    assert hash(again) == hash(schedule)
    assert (again.name, again.text, again.kind, again.asked) == (
        schedule.name, schedule.text, schedule.kind, schedule.asked,
    )  # fmt: skip
    assert (again.bubble, again.peak, again.makespan(transfer=0.1)) == figures
    assert str(again.check()) == str(schedule.check())
    assert pw.compare(schedule, HOW[how](pw.compare(schedule, schedule)).a).a == schedule


def test_a_schedule_of_a_generator_that_is_not_there_any_more_is_still_one(monkeypatch) -> None:
    from pathways_nb.parallel.schedules import registry

    schedule = pw.schedule("gpipe", devices=2, microbatches=2)
    data = pickle.dumps(schedule)
    monkeypatch.setattr(registry, "_kinds", {name: kind for name, kind in registry._kinds.items() if name != "gpipe"})
    again = pickle.loads(data)
    assert again == schedule
    assert again.kind is None
    assert again.bubble == schedule.bubble
