"""The cost model beside which the transfers of a recorded run are shown: what this machine was calibrated to."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from pathways_nb.cost.model import CostModel
from pathways_nb.errors import UsageError
from pathways_nb.session.session import Session

# Empty until ``calibration``, which stands on this package, registers itself: ``import pathways_nb`` does.
_stored: list[Callable[[Session], CostModel | None]] = []


def read_models_by(stored: Callable[[Session], CostModel | None]) -> None:
    """Register the function that returns the model of a controller's devices if one is stored, without measuring."""
    _stored[:] = [stored]


def link_model(session: Session) -> CostModel | None:
    """Return the model of real devices if one is stored, else ``None``; simulated transfers are modelled themselves."""
    if not _stored or session.driver_or_none is None or session.attach_options.simulated is not None:
        return None
    with contextlib.suppress(UsageError, OSError):  # it is of another machine, or damaged: ``pw.calibration`` tells
        return _stored[0](session)
    return None
