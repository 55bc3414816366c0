"""How tests compile: what they set and take back, and what the one comparison of values holds for."""

from __future__ import annotations

import os
from types import SimpleNamespace

import numpy as np
import pytest

from tests.support import compiler_effort
from tests.support.closeness import close, error


def test_what_is_started_as_for_a_user_knows_nothing_of_the_tests_compiler(monkeypatch) -> None:
    monkeypatch.setenv("XLA_FLAGS", f"--xla_cpu_max_isa=AVX2 {compiler_effort.FLAGS}")
    monkeypatch.setenv("JAX_COMPILATION_CACHE_DIR", "somewhere")
    with compiler_effort.usual_environment():
        assert os.environ["XLA_FLAGS"] == "--xla_cpu_max_isa=AVX2"
        assert "JAX_COMPILATION_CACHE_DIR" not in os.environ
        assert not set(compiler_effort.KEEPING) & set(os.environ)
    assert os.environ["JAX_COMPILATION_CACHE_DIR"] == "somewhere"


def test_options_are_tried_once_for_each_version(tmp_path, monkeypatch) -> None:
    """XLA ends the process over a flag that it does not know."""
    tried = []

    def run(command, env, **_):
        tried.append(env["XLA_FLAGS"])
        return SimpleNamespace(**answers[len(tried) - 1])

    monkeypatch.setattr(compiler_effort.subprocess, "run", run)
    answers = [{"returncode": -9, "stderr": ""}, {"returncode": -6, "stderr": "F0000 Unknown flags in XLA_FLAGS: ..."}]
    for _ in range(4):
        assert not compiler_effort._is_known(tmp_path / "flags")
    assert tried == [compiler_effort.FLAGS] * 2, "a process that was killed says nothing"
    answers.append({"returncode": 0, "stderr": ""})
    for _ in range(2):
        assert compiler_effort._is_known(tmp_path / "other" / "flags")
    assert len(tried) == 3


def test_values_are_close_by_the_measure_of_their_tensor() -> None:
    expected = np.array([1000.0, 1e-3, -500.0], np.float32)
    close({"w": expected + 5e-3}, {"w": expected})
    with pytest.raises(AssertionError, match=r"\['w'\]"):
        close({"w": expected + 5e-2}, {"w": expected})
    with pytest.raises(AssertionError):
        close([expected], [expected, expected])
    with pytest.raises(AssertionError, match=r"\(3,\), and \(1, 3\) expected"):
        close(expected, expected[None])
    with pytest.raises(AssertionError):
        close(np.float32(1e-30), np.float32(0))
    close(np.float32(1e-7), np.float32(0), least=1.0)
    with pytest.raises(AssertionError):
        close(np.array([1_000_001]), np.array([1_000_000]))
    close(np.array([True, False]), np.array([True, False]))
    close(np.array([np.inf, 1.0]), np.array([np.inf, 1.0]))
    with pytest.raises(AssertionError):
        close(np.array([np.nan, 1.0]), np.array([0.0, 1.0]))
    assert error([expected * 1.5], [expected]) == 0.5
