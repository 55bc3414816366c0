"""A stand-alone page in a real browser: opened when it is drawn, and at the end it has asked for and complained of
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from pathways_widgets import page


@pytest.fixture
def opened(chromium: Any, tmp_path: Path) -> Iterator[Callable[..., Any]]:
    """``opened(*parts, width=1000, height=900, **context)``: a tab with a page of these parts, drawn."""
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
