"""The garbage collector is kept out of blocks, and comes back."""

from __future__ import annotations

import gc

import pytest

from pathways_nb.util.collecting import uncollected


@pytest.mark.parametrize("is_on", [True, False])
def test_collections_are_put_off_until_the_last_block_ends_and_only_if_there_are_any(is_on: bool) -> None:
    (gc.enable if is_on else gc.disable)()
    try:
        outer, inner = uncollected(), uncollected()
        with outer:
            with inner:
                assert not gc.isenabled()
            assert not gc.isenabled()
        assert gc.isenabled() is is_on
    finally:
        gc.enable()
