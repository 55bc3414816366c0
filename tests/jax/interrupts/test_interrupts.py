"""A sample of ``python -m tests.jax.interrupts``, each in a process of its own, which ends if anything hangs."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import ROOT
from tests.support.waiting import LIMIT


@pytest.mark.parametrize(
    "arguments",
    [("--forced", "--count", "150"), ("--count", "150"), ("--simulate", "--count", "60")],
    ids=["at instants", "at random", "simulated"],
)
def test_the_next_call_is_right_and_nothing_is_left(arguments: tuple[str, ...]) -> None:
    command = [sys.executable, "-m", "tests.jax.interrupts", *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "'swallowed'" not in ended.stdout
    assert "lost in callbacks: 0" in ended.stdout
