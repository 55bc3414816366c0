"""Fixtures shared by all tests: a controller whose whole state is checked at teardown, and fresh interpreters."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from weakref import WeakSet

import pytest
from hypothesis import HealthCheck, settings

import pathways_nb as pw
from pathways_nb.controller.invariants import check_invariants
from pathways_nb.controller.state_machine import StateMachine
from pathways_nb.parallel.schedules import registry
from pathways_nb.session import default_controller
from tests.support import compiler_effort
from tests.support.waiting import LIMIT

ANY_SPEED = (HealthCheck.too_slow, HealthCheck.function_scoped_fixture)
settings.register_profile("shared machine", deadline=None, suppress_health_check=ANY_SPEED)
settings.register_profile("fast", settings.get_profile("shared machine"), max_examples=10)
settings.load_profile("shared machine")
ROOT = Path(__file__).parent.parent
TIERS = ("core", "jax", "browser")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests without devices first, and those of figures and pages last."""
    items.sort(key=lambda item: TIERS.index(item.path.relative_to(ROOT / "tests").parts[0]))


def settled(controller: pw.Controller) -> None:
    """Wait until nothing is under way and the event loop has handled every event posted so far."""
    driver = controller.driver_or_none
    if driver is None:
        return
    assert driver.wait_idle(LIMIT), f"programs {sorted(driver.runs)} never end"
    driver.event_loop.in_turn(lambda: None)
    driver.check()


@pytest.fixture
def quiet() -> Callable[..., None]:
    """``settled`` as a fixture."""
    return settled


@pytest.fixture
def watchdog() -> Iterator[None]:
    """A test that waits for ever fails instead: waiting is interruptible."""

    def give_up(number: int, frame: object) -> None:
        raise TimeoutError(f"still waiting after {LIMIT:.0f} s")

    before = signal.signal(signal.SIGALRM, give_up)
    signal.setitimer(signal.ITIMER_REAL, LIMIT, 5)  # again, should the first one be swallowed
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


@pytest.fixture(autouse=True)
def whole(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever controllers a test made, or found: their whole state is checked at its end."""
    made: list[pw.Controller] = []
    init = pw.Controller.__init__

    def remember(self: pw.Controller, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        made.append(self)

    monkeypatch.setattr(pw.Controller, "__init__", remember)
    found = default_controller.peek()
    yield
    for controller in {id(one): one for one in (*made, *filter(None, [found]))}.values():
        if not controller.closed:
            settled(controller)
        if isinstance(controller.machine, StateMachine):  # else it stands for a core that several kernels share
            check_invariants(controller.machine)


@pytest.fixture
def own_schedules(monkeypatch: pytest.MonkeyPatch) -> None:
    """Schedules registered in a test are forgotten at its end, and so are explorers, which may still show one."""
    monkeypatch.setattr(registry, "_kinds", dict(registry._kinds))
    monkeypatch.setattr(registry, "_watching", WeakSet())


@pytest.fixture
def controller(watchdog: None) -> Iterator[pw.Controller]:
    """Two islands of four devices, reset; nothing is under way at the end."""
    made = pw.attach("cpu", islands=2, devices_per_island=4)
    pw.reset()
    yield made
    settled(made)
    assert not made.machine.calls
    assert made.driver_or_none is None or not made.driver_or_none.runs
    assert not made.recordings


@pytest.fixture
def left(controller: pw.Controller) -> pw.VirtualSlice:
    """All devices of island 0."""
    return pw.virtual_slice(4, island=0, name="left")


@pytest.fixture
def right(controller: pw.Controller) -> pw.VirtualSlice:
    """All devices of island 1."""
    return pw.virtual_slice(4, island=1, name="right")


@pytest.fixture
def usual_effort() -> Iterator[None]:
    """What the test compiles is optimised as for a user, and has names and lines of this source."""
    with compiler_effort.usual_effort():
        yield


@pytest.fixture
def fresh_python(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run code in a new interpreter, from a file so that errors can name its lines."""

    def run(code: str, timeout: float = LIMIT, **environment: str) -> subprocess.CompletedProcess[str]:
        script = tmp_path / "script.py"
        script.write_text(textwrap.dedent(code))
        paths = [str(ROOT), str(ROOT / "widgets"), str(ROOT / "datasets"), os.environ.get("PYTHONPATH", "")]
        inherited = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, paths)), **environment}
        return subprocess.run(
            [sys.executable, "-X", "faulthandler", str(script)],
            env=inherited, cwd=tmp_path, capture_output=True, text=True, timeout=timeout, check=False,
        )  # fmt: skip

    return run
