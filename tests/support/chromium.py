"""Chromium for the tests marked ``browser``: found where people keep it, loudly missed where it is not.

A person without Chromium gets the other tests and a banner; under ``CI=true`` or ``PATHWAYS_REQUIRE_BROWSER=1``
the browser tests fail instead of being skipped.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.waiting import LIMIT

if TYPE_CHECKING:
    from playwright.sync_api import Browser, BrowserContext

MISSING = "no Chromium found: apt-get install chromium, or set CHROMIUM to its path"


def browser_required() -> bool:
    """Whether a missing browser is a failure."""
    return os.environ.get("CI", "").lower() in {"1", "true"} or os.environ.get("PATHWAYS_REQUIRE_BROWSER") == "1"


@pytest.fixture(scope="session")
def chromium() -> Iterator[Browser]:
    """A headless browser, shared by the session; each test opens a context of its own, which waits patiently."""
    from playwright.sync_api import sync_playwright

    from pathways_nb.bench.lab import find_chromium

    arguments = ["--no-sandbox"] if os.geteuid() == 0 else []  # Chromium refuses to sandbox root
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=find_chromium(), args=arguments, timeout=1e3 * LIMIT)
        new_context = browser.new_context

        def patient(**options: Any) -> BrowserContext:
            context = new_context(**options)
            context.set_default_timeout(1e3 * LIMIT)
            return context

        browser.new_context = patient  # type: ignore[method-assign]
        yield browser
        browser.close()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Fail or skip a browser test where there is no browser."""
    if not item.get_closest_marker("browser"):
        return
    from pathways_nb.bench.lab import find_chromium  # takes seconds, which tests without a browser need not wait for

    if not find_chromium():
        if browser_required():
            pytest.fail(MISSING, pytrace=False)
        pytest.skip(MISSING)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Say loudly which tests a missing browser took away."""
    skipped = [report for report in terminalreporter.stats.get("skipped", []) if "no Chromium" in str(report.longrepr)]
    if skipped:
        terminalreporter.section("BROWSER TESTS DID NOT RUN", sep="!", red=True, bold=True)
        terminalreporter.write_line(f"{len(skipped)} browser tests skipped: {MISSING}", red=True)
