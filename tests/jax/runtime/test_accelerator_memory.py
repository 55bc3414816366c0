"""Memory of accelerators: what others hold there counts, and a device that has too little is no puzzle."""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.plan.plan import Placement
from pathways_nb.runtime import device_facts
from pathways_nb.runtime.local import foreign_memory
from pathways_nb.runtime.lowering import executables
from tests.support.fake_devices import backend_error, cpu_devices
from tests.support.waiting import until, until_freed

MB = 1 << 20
BLOCK = np.ones((4, MB // 4), np.float32)  # 1 MiB on each of four devices


@pytest.fixture
def gpus(controller: pw.Controller, monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Four devices that stand for GPUs."""
    mine = cpu_devices(4)
    monkeypatch.setattr(device_facts, "found_devices", lambda: ("gpu", mine))
    return mine


@pytest.fixture
def used(gpus: list[Any], monkeypatch: pytest.MonkeyPatch) -> dict[Any, int]:
    """The bytes that each of them reports to be in use, of 10 MiB."""
    found = dict.fromkeys(gpus, 0)
    told = lambda device: {"bytes_limit": 10 * MB, "bytes_in_use": found[device]}  # noqa: E731
    monkeypatch.setattr(device_facts, "stats_of", told)
    return found


def halved() -> pw.Program:
    """A program that needs 3 MiB of each device: its argument, and two arrays of that size."""
    half = pw.jit(lambda x: x / 2, on=pw.virtual_slice(4), in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    return pw.program(lambda x: half(half(x)), name="halved")


def until_nothing_is_held(controller: pw.Controller) -> None:
    """Wait until the controller's ledger is empty, as a run that has ended leaves it a moment later."""
    until_freed(lambda: not controller.machine.memory.most(Placement(0, 0, 4)))


def test_a_program_waits_for_what_others_hold(used: dict[Any, int]) -> None:
    with pw.attach("gpu") as controller:
        assert controller.budgets == (10 * MB,)
        program = halved()
        program(BLOCK).wait()
        until_nothing_is_held(controller)  # or what is its own would count as the others' less
        used[next(iter(used))] = 9 * MB  # on one device only: a gang needs all
        y = program(BLOCK)
        until(lambda: bool(controller.machine.admission.blocked))
        assert not y.done()
        (waits,) = controller.machine.admission.blocked.values()
        assert waits.reason.startswith(
            "memory of island 0 held by 9.44 MB that others hold, such as arrays of your own"
        )
        used.update(dict.fromkeys(used, 0))
        np.testing.assert_array_equal(y.result(), BLOCK / 4)


def test_a_wait_that_only_others_could_end_is_an_error_that_names_them(used: dict[Any, int]) -> None:
    with pw.attach("gpu"):
        program = halved()
        used.update(dict.fromkeys(used, 9 * MB))
        with pytest.raises(pw.OutOfMemoryError) as error:
            program(BLOCK).result()
        assert "of the 10.5 MB per device of island 0, dev 0–3, less 9.44 MB that others hold" in str(error.value)
        assert str(error.value).endswith("or delete arrays of your own there.")
        used.update(dict.fromkeys(used, 0))
        np.testing.assert_array_equal(program(BLOCK).result(), BLOCK / 4)


def test_the_status_tells_what_others_hold_from_the_beginning(used: dict[Any, int]) -> None:
    used.update(dict.fromkeys(used, 9 * MB))
    with pw.attach("gpu") as controller:
        line = (
            "island 0: 0 B of 10.5 MB on its fullest device, and 9.44 MB that others hold, such as arrays of your own"
        )
        assert line in controller.status()


def test_what_the_controller_holds_itself_is_not_counted_twice(used: dict[Any, int]) -> None:
    with pw.attach("gpu") as controller:
        place = pw.virtual_slice(4)
        x = pw.put(BLOCK, on=place, shardings=pw.P("x"))
        used.update(dict.fromkeys(used, MB))  # just that
        halved()(x).wait()
        assert controller.machine.memory.islands[0].others == 0
        del x
        gc.collect()


def test_hbm_overrides(used: dict[Any, int]) -> None:
    used.update(dict.fromkeys(used, 9 * MB))
    with pw.attach("gpu", hbm=5e6) as controller:
        assert controller.budgets == (5_000_000,)
        np.testing.assert_array_equal(halved()(BLOCK).result(), BLOCK / 4)


def test_devices_that_report_nothing_count_the_arrays_of_this_process(
    gpus: list[Any], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuses(device: Any) -> None:
        raise RuntimeError("UNIMPLEMENTED: not here")

    monkeypatch.setattr(device_facts, "stats_of", refuses)
    monkeypatch.setattr(device_facts, "chip_of_kind", lambda kind: pw.chip("tpu_v5e").replace(hbm_bytes=10.0 * MB))
    with pw.attach("gpu") as controller:
        program = halved()
        program(BLOCK).wait()
        until_nothing_is_held(controller)
        assert "The devices do not report their memory: counted are 10.5 MB each" in capsys.readouterr().out
        mine = jax.device_put(np.ones(9 * MB, np.int8), gpus[2])
        y = program(BLOCK)
        until(lambda: bool(controller.machine.admission.blocked))
        (waits,) = controller.machine.admission.blocked.values()
        assert "such as arrays of your own (the largest: int8[9437184] 9.44 MB" in waits.reason
        del mine
        np.testing.assert_array_equal(y.result(), BLOCK / 4)


def test_arrays_in_cycles_of_objects_are_collected_while_a_program_waits(
    gpus: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_facts, "stats_of", lambda device: None)
    monkeypatch.setattr(device_facts, "chip_of_kind", lambda kind: pw.chip("tpu_v5e").replace(hbm_bytes=10.0 * MB))

    class Trainer:
        """It has an array, and itself."""

    with pw.attach("gpu"):
        program = halved()
        program(BLOCK).wait()
        gc.disable()
        try:
            trainer: Any = Trainer()
            trainer.me, trainer.array = trainer, jax.device_put(np.ones(9 * MB, np.int8), gpus[2])
            del trainer
            np.testing.assert_array_equal(program(BLOCK).result(), BLOCK / 4)
        finally:
            gc.enable()


def test_a_small_program_is_not_measured_for(used: dict[Any, int], monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(foreign_memory, "in_use", lambda devices: asked.append(devices) or [0] * len(devices))
    with pw.attach("gpu"):
        half = pw.jit(lambda x: x / 2, on=pw.virtual_slice(4), in_shardings=pw.P("x"))
        half(np.ones(4, np.float32)).wait()
        assert len(asked) == 1  # at the beginning
        halved()(BLOCK).wait()
        assert len(asked) > 1


# ---- a device that has too little


class Failing:
    """An executable whose calls fail while there is a text."""

    text = ""

    def __init__(self, call: Callable[..., Any]):
        self.call = call

    def __call__(self, *inputs: Any) -> Any:
        if Failing.text:
            raise backend_error(Failing.text)
        return self.call(*inputs)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.call, name)


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Failing]]:
    """Executables that can be made to fail."""
    compiled = executables._compile

    def compile_(*args: Any) -> Any:
        made = compiled(*args)
        return replace(made, call=Failing(made.call))

    monkeypatch.setattr(executables, "_compile", compile_)
    yield Failing
    Failing.text = ""


def test_an_allocation_that_fails_is_out_of_memory_with_the_largest_holders(gpus: list[Any], failing: Any) -> None:
    with pw.attach("gpu"):
        left = pw.virtual_slice(4, name="left")
        kept = pw.put(BLOCK, on=left, shardings=pw.P("x"))
        third = pw.jit(lambda x: x / 3, on=left, in_shardings=pw.P("x"))
        third(kept).wait()
        failing.text = (
            "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 17179869184 bytes.\nBufferAssignment: …"
        )
        with pytest.raises(pw.OutOfMemoryError) as error:
            third(kept).result()
        said = str(error.value)
        assert "third of " in said
        assert "failed on left (island 0, devices 0–3)" in said
        assert (
            "its devices have too little memory left (RESOURCE_EXHAUSTED: Out of memory while trying to allocate "
            "17179869184 bytes.). Held there by variables: put on left" in said
        )
        assert "(1.05 MB)" in said
        assert "BufferAssignment" not in said
        failing.text = ""
        np.testing.assert_array_equal(third(kept).result(), BLOCK / 3)


def test_a_compilation_that_needs_too_much_is_out_of_memory_too(
    gpus: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """On TPUs it is the compiler that finds it."""
    text = "XLA:TPU compile permanent error. Ran out of memory in memory space hbm. Used 17.54G of 15.48G hbm."
    with pw.attach("gpu"):
        third = pw.jit(lambda x: x / 3, on=pw.virtual_slice(4, name="left"), in_shardings=pw.P("x"))
        with monkeypatch.context() as patched:

            def fails(*args: Any) -> None:
                raise backend_error(f"RESOURCE_EXHAUSTED: {text}\nProgram hbm requirement 17.54G: …")

            patched.setattr(executables, "_compile", fails)
            with pytest.raises(pw.OutOfMemoryError) as error:
                third(BLOCK)
            assert str(error.value).startswith(
                f"third cannot be compiled for island 0, dev 0–3: its devices have too little memory left "
                f"(RESOURCE_EXHAUSTED: {text}). Held there by variables: nothing."
            )
            patched.setattr(executables, "_compile", lambda *args: 1 / 0)
            with pytest.raises(ZeroDivisionError):
                third(BLOCK)
        np.testing.assert_array_equal(third(BLOCK).result(), BLOCK / 3)


def test_a_value_that_cannot_be_put_is_out_of_memory_too(gpus: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    with pw.attach("gpu"):
        left, put = pw.virtual_slice(2, name="left"), jax.device_put

        def fails(*args: Any, **options: Any) -> None:
            raise backend_error("RESOURCE_EXHAUSTED: Out of memory allocating 1 byte.")

        pw.put(1.0, on=left)  # which starts the driver
        monkeypatch.setattr(jax, "device_put", fails)
        with pytest.raises(
            pw.OutOfMemoryError, match=r"a value cannot be put: its devices have too little memory left"
        ):
            pw.put(BLOCK, on=left)
        monkeypatch.setattr(jax, "device_put", put)
        np.testing.assert_array_equal(pw.put(BLOCK, on=left).result(), BLOCK)
