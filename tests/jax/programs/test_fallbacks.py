"""What fails without harm to the work is told once, with what holds instead."""

from __future__ import annotations

import os
import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from pathways_nb.runtime import device_facts, local_islands
from pathways_nb.runtime.lowering import executables
from pathways_nb.session.status import _in_use
from pathways_nb.util import fallbacks


@pytest.fixture(autouse=True)
def nothing_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fallbacks, "_told", set())


def refuses() -> Any:
    raise RuntimeError("UNIMPLEMENTED: not here")


def test_a_fallback_is_told_once_with_its_reason() -> None:
    with pytest.warns(RuntimeWarning, match=r"^It failed \(ValueError: no\)\. Something else holds\.$"):
        fallbacks.fall_back("It failed", ValueError("no"), "Something else holds.")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fallbacks.fall_back("It failed", ValueError("again"), "Something else holds.")


@pytest.mark.parametrize(
    ("analysis", "why"),
    [(refuses, "RuntimeError: UNIMPLEMENTED: not here"), (lambda: None, "the backend reports nothing")],
)
def test_a_backend_that_does_not_tell_what_programs_need(analysis: Any, why: str) -> None:
    with pytest.warns(
        RuntimeWarning, match=rf"need while they run cannot be read here \({why}\)\. Only inputs, .* too low"
    ):
        assert executables.memory_of(SimpleNamespace(memory_analysis=analysis)) == (0, 0)


def test_devices_that_refuse_to_tell_their_memory() -> None:
    island = local_islands.LocalIsland(0, (SimpleNamespace(memory_stats=refuses),))
    with pytest.warns(RuntimeWarning, match=r"memory of the attached devices cannot be read \(RuntimeError.*hbm=16e9"):
        assert device_facts.capacity_of(island.devices) == 0
    assert _in_use(island.devices) == ", memory in use unknown (RuntimeError: UNIMPLEMENTED: not here)"


def test_devices_that_have_nothing_to_tell_of_memory_are_no_failure() -> None:
    assert device_facts.capacity_of((SimpleNamespace(memory_stats=lambda: None),)) == 0


def test_threads_whose_priority_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: int) -> None:
        raise PermissionError("not permitted")

    monkeypatch.setattr(os, "setpriority", forbidden)
    with pytest.warns(RuntimeWarning, match=r"cannot be lowered \(PermissionError: not permitted\)\. .* may be late"):
        local_islands._step_back({"1", "2"})


def test_a_thread_that_has_ended_is_no_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    def gone(*args: int) -> None:
        raise ProcessLookupError

    monkeypatch.setattr(os, "setpriority", gone)
    local_islands._step_back({"1"})
