"""Stand-alone pages, read as text and opened in a real browser without any network."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pathways_nb.trace.record import Events, Label, Row
from pathways_widgets import figure_of, page
from tests.widgets.fake_run import FakeRun, fake_run

EVIL = "<img src=x onerror=alert(1)><script>alert(2)</script>"


def evil_run() -> FakeRun:
    label = Label("compute", EVIL, EVIL, place=EVIL, island=0, devices=4, bytes=1_500_000)
    return FakeRun([], Events.from_rows([Row(label, 0.0, 0.25, 3, "exact")]))


def test_a_page_holds_everything_and_escapes_names() -> None:
    text = page(f"a {EVIL}", ["<h1>hello</h1>", figure_of(evil_run())])
    assert EVIL not in text
    assert "<h1>hello</h1>" in text
    assert "<script src" not in text
    assert "<link" not in text


@pytest.mark.browser
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_paints_without_network_or_errors(chromium: Any, tmp_path: Path, scheme: str) -> None:
    path = tmp_path / "page.html"
    path.write_text(page("pipeline", ["<h1>A little pipeline</h1>", figure_of(fake_run())]), "utf-8")
    context = chromium.new_context(viewport={"width": 1000, "height": 800}, color_scheme=scheme)
    tab = context.new_page()
    requests: list[str] = []
    troubles: list[str] = []
    tab.on("request", lambda request: requests.append(request.url))
    tab.on("pageerror", lambda error: troubles.append(str(error)))
    tab.on("console", lambda message: troubles.append(message.text) if message.type in ("error", "warning") else None)
    tab.goto(path.as_uri())
    tab.wait_for_selector("body[data-drawn]")
    tab.wait_for_timeout(300)
    assert painted_colours(tab) > 8
    assert "59 events on 8 devices, bubble < 12 %" in tab.inner_text("body")
    tab.screenshot(path=str(tmp_path / f"page-{scheme}.png"))
    assert requests == [path.as_uri()]
    assert troubles == []
    context.close()


@pytest.mark.browser
def test_hover_shows_names_as_text(chromium: Any, tmp_path: Path) -> None:
    path = tmp_path / "evil.html"
    path.write_text(page("evil", [figure_of(evil_run(), ("timeline",))]), "utf-8")
    tab = chromium.new_page(viewport={"width": 1000, "height": 800})
    alerts: list[str] = []
    tab.on("dialog", lambda dialog: alerts.append(dialog.message))  # and it would hang
    tab.goto(path.as_uri())
    tab.wait_for_selector("body[data-drawn]")
    box = tab.locator(".bk-Figure").bounding_box()
    tab.mouse.move(box["x"] + 400, box["y"] + 130)
    tab.mouse.move(box["x"] + 402, box["y"] + 130)
    tip = tab.locator(".bk-Tooltip").first
    tip.wait_for()
    tip.locator(".bk-tooltip-row-value, td, span").first.wait_for(state="attached")
    text = tip.evaluate("(element) => (element.shadowRoot ?? element).textContent")
    assert EVIL in text
    assert "250 ms" in text
    assert "1.5 MB" in text
    assert "island 0, dev 0–3" in text
    assert tip.locator("img, script").count() == 0
    assert alerts == []
    tab.close()


def painted_colours(tab: Any) -> int:
    """How many different opaque colours the page's canvases hold, sampled."""
    return int(
        tab.evaluate(
            """() => {
                const canvases = [], colours = new Set()
                const walk = (node) => {
                    for (const child of node.children) {
                        if (child.tagName === "CANVAS") canvases.push(child)
                        if (child.shadowRoot) walk(child.shadowRoot)
                        walk(child)
                    }
                }
                walk(document.body)
                for (const canvas of canvases) {
                    if (!canvas.width || !canvas.height) continue
                    const {data} = canvas.getContext("2d").getImageData(0, 0, canvas.width, canvas.height)
                    for (let i = 0; i < data.length; i += 28)
                        if (data[i + 3] === 255) colours.add(`${data[i]},${data[i + 1]},${data[i + 2]}`)
                }
                return colours.size
            }"""
        )
    )
