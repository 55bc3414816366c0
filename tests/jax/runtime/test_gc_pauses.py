"""Pauses of Python in a controller's record."""

from __future__ import annotations

import gc

import pathways_nb as pw


def test_a_controller_listens_for_pauses_until_it_is_closed(controller) -> None:
    count = len(gc.callbacks)
    with pw.attach("cpu", islands=1, devices_per_island=1) as other:
        pw.put(1.0, on=pw.virtual_slice(1)).wait()
        assert len(gc.callbacks) == count + 1
        other.reset()
    assert len(gc.callbacks) == count
