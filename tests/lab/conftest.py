"""One JupyterLab for all tests here; each leaves no kernel and no page behind."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from pathways_nb.bench import lab as lab_server
from pathways_nb.bench.lab import LabServer

if TYPE_CHECKING:
    from playwright.sync_api import Browser


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabServer]:
    """A server on copies of the course's notebooks."""
    started = lab_server.start(tmp_path_factory.mktemp("lab"), lab_server.ROOT / "notebooks")
    yield started
    started.stop()


@pytest.fixture
def lab(server: LabServer, chromium: Browser) -> Iterator[LabServer]:
    """The same, for one test."""
    yield server
    for context in chromium.contexts:
        context.close()
    server.end_kernels()
