"""Slices that a backend loses while programs run: recognised, removed from the core, and taken in when they are back."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.attach import local_attach
from pathways_nb.runtime import device_facts
from pathways_nb.runtime.local.device_failures import answers, is_exhausted, is_loss, may_be_loss
from pathways_nb.runtime.local.loss_watch import LossWatch
from pathways_nb.runtime.lowering import executables
from tests.support.fake_devices import backend_error, cpu_devices
from tests.support.waiting import until

V = np.arange(4, dtype=np.float32)


class Backend:
    """What the devices of a faked backend do: those of ``gone`` neither compute nor answer."""

    def __init__(self, devices: list[Any]):
        self.devices, self.gone, self.text = devices, set[Any](), "DATA_LOSS: Slice 1 was preempted."

    def answers(self, device: Any) -> bool:
        return device not in self.gone

    def executable(self, call: Callable[..., Any], mesh: Any) -> Callable[..., Any]:
        mine = set(mesh.devices.flat)

        class Call:
            def __call__(_, *inputs: Any) -> Any:  # noqa: N805
                if mine & self.gone:
                    raise backend_error(self.text)
                return call(*inputs)

            def __getattr__(_, name: str) -> Any:  # noqa: N805
                return getattr(call, name)

        return Call()


@pytest.fixture
def backend(controller: pw.Controller, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    """Two slices of two devices, as Pathways on Cloud shows them."""
    made = Backend(cpu_devices(4))
    slices = {device: at // 2 for at, device in enumerate(made.devices)}
    monkeypatch.setattr(device_facts, "found_devices", lambda: ("tpu", made.devices))
    monkeypatch.setattr(device_facts, "slice_index", slices.__getitem__)
    monkeypatch.setattr(local_attach, "LossWatch", partial(LossWatch, answers=made.answers, every=0.01))
    compiled = executables._compile

    def compile_(lowered: Any, kept: Any, request: Any, same: Any) -> Any:
        found = compiled(lowered, kept, request, same)
        return replace(found, call=made.executable(found.call, request.mesh))

    monkeypatch.setattr(executables, "_compile", compile_)
    yield made
    made.gone.clear()


def doubled(place: pw.VirtualSlice) -> pw.Computation:
    double = pw.jit(lambda x: x * 2, on=place, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    return double


def test_a_lost_slice_is_removed_and_comes_back(backend: Backend, capsys: pytest.CaptureFixture[str]) -> None:
    with pw.attach("auto") as controller:
        assert controller.islands == (2, 2)
        left, right = pw.virtual_slice(2, island=0, name="left"), pw.virtual_slice(2, name="right")
        here, there = doubled(left), doubled(right)
        here(V).wait()
        x = there(V)
        np.testing.assert_array_equal(x.result(), V * 2)
        assert controller.located(right)[0].island == 1
        backend.gone = set(backend.devices[2:])
        with pytest.raises(pw.LostError) as error:
            there(V).result()
        assert str(error.value).startswith("double of ")
        assert "failed on right (island 1, devices 0–1)" in str(error.value)
        assert (
            "island 1 was lost (DATA_LOSS: Slice 1 was preempted.). What only it held is gone: call again from the "
            "last state that you have elsewhere." in str(error.value)
        )
        until(lambda: bool(controller.resources.lost))
        # What only the slice held is gone, and places move to the other one.
        until(lambda: x._entry.error is not None)
        with pytest.raises(pw.LostError):
            x.result()
        np.testing.assert_array_equal(here(V).result(), V * 2)
        np.testing.assert_array_equal(there(V).result(), V * 2)
        assert controller.located(right)[0].island == 0
        assert "lost: island 1, dev 0–1" in controller.status()
        backend.gone = set()
        until(lambda: not controller.resources.lost)
        np.testing.assert_array_equal(doubled(pw.virtual_slice(2, island=1))(V).result(), V * 2)
    said = capsys.readouterr().err
    assert "island 1 is lost (DATA_LOSS: Slice 1 was preempted.): its places move to other islands" in said
    assert "island 1 is back: its devices answer, and hold nothing." in said


@pytest.mark.parametrize("is_gone", [True, False])
def test_a_doubtful_error_is_a_loss_only_if_devices_do_not_answer(backend: Backend, is_gone: bool) -> None:
    with pw.attach("auto") as controller:
        place = pw.virtual_slice(2, island=1, name="right")
        there = doubled(place)
        there(V).wait()
        backend.text = "INTERNAL: something is wrong"
        backend.gone = set(backend.devices[2:])
        asked: list[Any] = []

        def one(device: Any) -> bool:
            asked.append(device)
            return not is_gone

        backend.answers = one  # type: ignore[method-assign]
        controller.driver._losses._answers = one
        with pytest.raises(pw.NodeError, match="failed on right .*INTERNAL: something is wrong"):
            there(V).result()
        until(lambda: bool(controller.resources.lost) if is_gone else len(asked) == 2)
        assert bool(controller.resources.lost) == is_gone


def test_a_fetch_that_finds_its_devices_gone(backend: Backend, monkeypatch: pytest.MonkeyPatch) -> None:
    with pw.attach("auto") as controller:
        x = doubled(pw.virtual_slice(2, island=1))(V)
        x.wait()

        def gone(*args: Any) -> None:
            raise backend_error("DATA_LOSS: the array is gone")

        backend.gone = set(backend.devices[2:])
        with monkeypatch.context() as patched:
            patched.setattr("pathways_nb.session.futures.listed", gone)
            with pytest.raises(
                pw.LostError, match=r"double cannot be fetched: island 1 was lost \(DATA_LOSS: the array"
            ):
                x.result()
        until(lambda: bool(controller.resources.lost))


def test_a_slice_that_was_given_back_by_hand_may_be_lost_again(backend: Backend) -> None:
    with pw.attach("auto") as controller:
        controller.driver._losses._every = 1e6
        there = doubled(pw.virtual_slice(2, island=1))
        there(V).wait()
        backend.gone = set(backend.devices[2:])
        for _ in range(2):
            with pytest.raises(pw.LostError):
                there(V).result()
            until(lambda: bool(controller.resources.lost))
            controller.add(island=1)
        backend.gone = set()
        np.testing.assert_array_equal(there(V).result(), V * 2)


def test_what_is_asked_and_told() -> None:
    told: list[Any] = []
    living = {"a": True, "b": True}
    watch = LossWatch([["a"], ["b"]], lambda *loss: told.append(loss), told.append, living.__getitem__)
    watch.look(1, "INTERNAL", False)
    assert told == []  # it answers
    watch.look(0, "DATA_LOSS", True)
    assert told == [(0, "DATA_LOSS")]  # it answers by now, but what it held is gone
    watch.look(0, "DATA_LOSS", True)
    assert len(told) == 1
    watch.look_for_returns()
    assert told == [(0, "DATA_LOSS"), 0]
    living["b"] = False
    watch.look(1, "NOT_FOUND", False)
    watch.look_for_returns()
    assert told[2:] == [(1, "NOT_FOUND")]


def test_many_failures_by_one_loss_ask_once() -> None:
    asked: list[str] = []
    told: list[Any] = []
    watch = LossWatch(
        [["a"], ["b"]], lambda *loss: told.append(loss), told.append, lambda one: asked.append(one) or True
    )
    for _ in range(100):
        watch.suspect(0, "INTERNAL", False)
    watch.suspect(1, "DATA_LOSS", True)
    watch.suspect(1, "INTERNAL", False)
    watch.stop()
    watch.run()
    assert asked == ["a"]
    assert told == [(1, "INTERNAL")]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("DATA_LOSS: Slice 3 is down", (True, False, False)),
        ("NOT_FOUND: buffer 7", (False, True, False)),
        ("DEADLINE_EXCEEDED: 60 s", (False, True, False)),
        ("UNAVAILABLE: connection reset", (False, True, False)),
        ("RESOURCE_EXHAUSTED: Out of memory", (False, False, True)),
        ("INVALID_ARGUMENT: shapes", (False, False, False)),
    ],
)
def test_what_an_error_says_of_the_devices(text: str, found: tuple[bool, ...]) -> None:
    error = backend_error(text)
    assert (is_loss(error), may_be_loss(error), is_exhausted(error)) == found
    assert not is_loss(ValueError(text))


def test_a_device_that_computes_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert answers(jax.devices()[0])

    def fails(*args: Any) -> None:
        raise backend_error("DATA_LOSS: gone")

    monkeypatch.setattr(jax, "device_put", fails)
    assert not answers(jax.devices()[0])
