"""The resource manager and virtual slices: who lies where, and what is said when it does not fit."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import pathways_nb as pw
from pathways_nb.controller.resources import Resources
from tests.support.waiting import until_freed


def test_more_devices_than_an_island_has_suggests_two_slices() -> None:
    big = pw.virtual_slice(8, name="big")
    with pytest.raises(pw.PlaceError) as error:
        Resources((4, 4)).place([big])
    assert str(error.value) == (
        "big asks for 8 devices, but there are 2 islands of 4 devices. A slice lies within one island: use two, "
        "pw.virtual_slice(4) and pw.virtual_slice(4), or attach more: "
        "pw.attach(…, islands=2, devices_per_island=8)."
    )


def test_a_place_takes_the_name_of_the_variable_that_holds_it(controller: pw.Controller) -> None:
    scope: dict[str, object] = {"pw": pw}
    cell = "upper = pw.virtual_slice(2)\n@pw.jit(on=upper)\ndef f(v): return v\n"
    exec(compile(cell, "cell.py", "exec"), scope)
    assert scope["upper"].label == "upper"  # type: ignore[attr-defined]
    assert repr(scope["f"]) == "<computation f on upper>"


def test_a_slice_that_nobody_holds_frees_its_devices(controller: pw.Controller) -> None:
    def use() -> None:
        place = pw.virtual_slice(4)
        pw.put(1.0, on=place).result()

    use()
    until_freed(lambda: controller.resources.placements == {})


def test_a_slice_placed_by_a_replayed_program_frees_its_devices_too(
    controller: pw.Controller, quiet: Callable[..., None]
) -> None:
    def traced() -> pw.Program:
        program = pw.program(pw.jit(lambda v: v + 1, on=pw.virtual_slice(2)))
        program(1.0).wait()
        return program

    program = traced()
    with pw.attach("cpu", islands=1, devices_per_island=2) as other:
        program(1.0).wait()  # the same trace, placed anew
        (serial,) = other.resources.placements
        del program
        quiet(other)
        until_freed(lambda: serial not in other.resources.placements)


def test_places_go_whatever_computation_a_cell_calls_first(controller: pw.Controller) -> None:
    old = pw.jit(lambda v: v + 1, on=pw.virtual_slice(1))

    def cell() -> None:
        new = pw.jit(lambda v: v * 2, on=pw.virtual_slice(1))
        with pw.record():
            old(1.0), new(1.0)

    cell()
    held = len(controller.resources.placements)
    for _ in range(4):
        cell()
    until_freed(lambda: len(controller.resources.placements) <= held)


def test_status_lists_islands_devices_places_and_memory(
    controller: pw.Controller, left: pw.VirtualSlice, quiet: Callable[..., None]
) -> None:
    kept = pw.put([1.0, 2.0], on=left)
    quiet(controller)
    assert pw.get(kept) == [1.0, 2.0]
    text = controller.status()
    assert "<controller cpu: 2 islands × 4 devices, parallel dispatch>" in text
    assert "island 1: 4 × cpu, ids " in text
    assert "place left: island 0, dev 0–3" in text
    assert "object store: 2 buffers, 8 B" in text
    html = controller._repr_html_()
    assert '<pre style="white-space: pre-wrap">  island 0: 4 × cpu' in html
    assert "\n    island 0: " in html, "what belongs to the object store stands below it"
    assert "&lt;controller cpu" in html
