"""Room on devices for values that users put there: who finds none waits as programs do, and is told as they are."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pathways_nb.controller.admission import PATIENCE
from pathways_nb.controller.messages import Stored
from pathways_nb.errors import OutOfMemoryError
from pathways_nb.errors import size as in_words
from pathways_nb.trace.record import Row, label_of

if TYPE_CHECKING:
    from pathways_nb.backends.driver import Driver

_LOOK_AGAIN = 0.02
"""Seconds between two looks."""


def make_room(driver: Driver, stored: Stored) -> None:
    """Set memory aside for a value, as soon as there is enough; a wait is recorded.

    Raises:
        OutOfMemoryError: there is too little, and nothing under way will make any.
    """
    assert stored.holding is not None
    where = stored.holding.placement
    began, alone = driver.clock(), None
    while (answer := driver.engine.safely(lambda: _take(driver, stored))) is not True:
        if isinstance(answer, OutOfMemoryError):
            raise answer
        busy = driver.machine.admission.under_way.get(where.island)
        alone = None if busy else alone or driver.clock()
        if alone is not None and driver.clock() > alone + PATIENCE:
            patience = driver.engine.safely(lambda: driver.machine.admission.patience(where, stored.client))
            if driver.clock() > alone + patience:
                raise driver.engine.safely(lambda: _too_little(driver, stored))
        driver.check()
        driver.ended.wait(lambda: driver.broken, timeout=_LOOK_AGAIN)
    if driver.clock() - began > _LOOK_AGAIN:
        label = label_of("stall", f"back-pressure: memory for {stored.name}", client=stored.client)
        driver.levels.note(Row(label, began, driver.clock()))


def _take(driver: Driver, stored: Stored) -> bool | OutOfMemoryError:
    """Whether there was room, or that there never will be."""
    assert stored.holding is not None
    where, needed, admission = stored.holding.placement, stored.holding.bytes, driver.machine.admission
    if (most := admission.capacity(where, stored.client)) is not None and most < needed:
        return OutOfMemoryError(
            f"{stored.name} needs {in_words(needed)} on each device of {where}, which is more than the "
            f"{in_words(most)} that there are. Use more devices or smaller arrays, or a larger hbm= or memory=."
        )
    room = admission.room(where, stored.client)
    if room is not None and room < needed:
        return False
    driver.engine.obey(stored)
    return True


def _too_little(driver: Driver, stored: Stored) -> OutOfMemoryError:
    assert stored.holding is not None
    where, admission = stored.holding.placement, driver.machine.admission
    short = stored.holding.bytes - max(admission.room(where, stored.client) or 0, 0)
    return OutOfMemoryError(
        f"{stored.name} needs {in_words(stored.holding.bytes)} on each device, and lacks {in_words(short)} of "
        f"{admission.no_room(where, stored.client)}"
    )
