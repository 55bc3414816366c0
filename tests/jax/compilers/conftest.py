"""Both compilers are there, and each test has an empty cache."""

from __future__ import annotations

import pytest

from tests.support.chip_compilers import install_if_missing


@pytest.fixture(scope="session", autouse=True)
def _compilers():
    install_if_missing()


@pytest.fixture(autouse=True)
def _cache(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
