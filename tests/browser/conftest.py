"""One JupyterLab for all tests here, of which each leaves no kernel and no page behind; and stand-alone pages."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pathways_nb.bench import lab as lab_server
from pathways_nb.bench.lab import LabServer
from pathways_widgets import page

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


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """``opened(*parts, width=1000, height=900, **context)``: a tab with a page of these parts, drawn.

    At the end it has asked for and complained of nothing.
    """
    contexts, requests, troubles = [], [], []

    def open_page(*parts: str, width: int = 1000, height: int = 900, **context: Any) -> Any:
        path = tmp_path / "page.html"
        path.write_text(page("a page", list(parts)), "utf-8")
        contexts.append(chromium.new_context(viewport={"width": width, "height": height}, **context))
        tab = contexts[-1].new_page()
        tab.on("request", lambda request: requests.append(request.url))
        tab.on("pageerror", lambda error: troubles.append(str(error)))
        tab.on("console", lambda said: troubles.append(said.text) if said.type in ("error", "warning") else None)
        tab.on("dialog", lambda dialog: (troubles.append(dialog.message), dialog.dismiss()))  # or it would hang
        tab.goto(path.as_uri())
        tab.wait_for_selector("body[data-drawn]")
        tab.wait_for_function("Bokeh.documents.every((one) => one.is_idle)")
        return tab

    yield open_page
    for context in contexts:
        context.close()
    assert troubles == []
    assert requests == [(tmp_path / "page.html").as_uri()] * len(contexts)
