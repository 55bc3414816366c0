"""Pauses of Python in a controller's record."""

from __future__ import annotations

import gc

import pytest

import pathways_nb as pw
from pathways_nb.runtime import gc_pauses


def test_a_controller_listens_for_pauses_until_it_is_closed(controller) -> None:
    count = len(gc.callbacks)
    with pw.attach("cpu", islands=1, devices_per_island=1) as other:
        pw.put(1.0, on=pw.virtual_slice(1)).wait()
        assert len(gc.callbacks) == count + 1
        other.reset()
    assert len(gc.callbacks) == count


@pytest.mark.parametrize("is_on", [True, False])
def test_collections_are_put_off_until_the_last_block_ends_and_only_if_there_are_any(is_on: bool) -> None:
    (gc.enable if is_on else gc.disable)()
    try:
        outer, inner = gc_pauses.put_off(), gc_pauses.put_off()
        with outer:
            with inner:
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert gc.isenabled() is is_on
    finally:
        gc.enable()
