"""The text loader gives the same real bytes every time and windows a model can learn from."""

from __future__ import annotations

import os
from itertools import islice

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.profiler import ProfileData

from pathways_datasets import batches, h200_seconds, recorded, recorded_files, stdlib_source
from tests.support.examples import examples


def test_source_is_real_python_and_the_same_twice():
    text = stdlib_source(300_000)
    assert text.dtype == np.uint8
    assert text.shape == (300_000,)
    assert np.array_equal(text, stdlib_source(300_000))
    assert b"\nimport " in text.tobytes()


def test_a_shorter_read_is_the_beginning_of_a_longer_one():
    assert np.array_equal(stdlib_source(1_000), stdlib_source(100_000)[:1_000])


def test_the_default_is_two_megabytes():
    assert len(stdlib_source()) == 2_000_000


def test_tests_packages_and_generated_files_are_left_out(tmp_path, monkeypatch):
    kept = {"b.py": "b", "a/z.py": "z", "a.py": "a"}
    left = {
        "test/t.py": "t",
        "site-packages/s.py": "s",
        "x/tests/u.py": "u",
        "_sysconfigdata__linux.py": "d",
        "c.txt": "c",
    }
    for name, text in (kept | left).items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    monkeypatch.setattr(os, "__file__", str(tmp_path / "os.py"))
    assert stdlib_source().tobytes() == b"azb"  # a.py, a/z.py, b.py


def test_a_python_without_source_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "__file__", str(tmp_path / "python311.zip" / "os.pyc"))
    with pytest.raises(
        FileNotFoundError, match=r"no Python source beside the os module .*zipped or embedded.*frombuffer"
    ):
        stdlib_source()


def test_max_bytes_must_be_positive():
    with pytest.raises(ValueError, match=r"max_bytes=0.*at least 1 byte"):
        stdlib_source(0)


@examples(50)
@given(batch=st.integers(1, 5), length=st.integers(1, 20), extra=st.integers(1, 30), seed=st.integers(0, 2**32 - 1))
def test_targets_are_the_tokens_that_follow(batch, length, extra, seed):
    data = np.arange(length + extra) % 256  # consecutive, so a window's contents tell where it was cut
    for inputs, targets in islice(batches(data.astype(np.uint8), batch=batch, length=length, seed=seed), 3):
        assert inputs.shape == targets.shape == (batch, length)
        assert inputs.dtype == targets.dtype == np.int32
        assert np.array_equal(inputs[:, 1:], targets[:, :-1])
        assert np.array_equal((inputs + 1) % 256, targets)


def test_every_window_can_be_drawn():
    draws = islice(batches(np.arange(6), batch=50, length=3, seed=0), 20)
    assert {int(start) for inputs, _ in draws for start in inputs[:, 0]} == {0, 1, 2}


def test_bytes_stay_bytes():
    inputs, targets = next(batches(stdlib_source(50_000), batch=8, length=64, seed=3))
    assert min(inputs.min(), targets.min()) >= 0
    assert max(inputs.max(), targets.max()) <= 255


def test_a_seed_decides_the_windows():
    data = stdlib_source(10_000)
    first, again, other = (list(islice(batches(data, batch=4, length=16, seed=s), 3)) for s in (1, 1, 2))
    assert all(np.array_equal(a, b) for a, b in zip(first, again, strict=True))
    assert not any(np.array_equal(a, b) for a, b in zip(first, other, strict=True))
    assert not np.array_equal(first[0], first[1])


@pytest.mark.parametrize(
    ("data", "batch", "length", "text"),
    [
        (np.arange(10), 1, 10, r"need 11 tokens, data has 10"),
        (np.arange(10), 0, 4, r"batch=0, length=4.*at least 1"),
        (np.arange(10), 2, 0, r"batch=2, length=0.*at least 1"),
        (np.zeros((3, 9), int), 2, 4, r"a row of integers.*got int64 of shape \(3, 9\)"),
        (np.zeros(30), 2, 4, r"a row of integers.*got float64"),
    ],
)
def test_bad_arguments_are_refused_before_the_first_batch(data, batch, length, text):
    with pytest.raises(ValueError, match=text):
        batches(data, batch=batch, length=length, seed=0)


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # as an error it would abort the process in jaxlib
def test_recorded_files_hold_what_the_index_says():
    known = recorded_files()
    for name, steps in (("h200_plain_step", 2), ("h200_llama_8x2048", 1), ("h200_llama_4x4096_remat", 1)):
        step = ProfileData.from_serialized_xspace(recorded(f"{name}.xplane.pb"))
        (gpu,) = (plane for plane in step.planes if plane.name == "/device:GPU:0")
        kernels = [event for line in gpu.lines for event in line.events]
        seconds = (max(k.start_ns + k.duration_ns for k in kernels) - min(k.start_ns for k in kernels)) * 1e-9
        assert seconds / steps == pytest.approx(known[f"{name}.xplane.pb"]["seconds_per_step"], rel=0.1)
    assert recorded("h200_plain_step.hlo.txt").startswith(b"HloModule jit_step, is_scheduled=true")
    launches = ProfileData.from_serialized_xspace(recorded("h200_four_launches.xplane.pb"))
    (cpu,) = (plane for plane in launches.planes if plane.name == "/host:CPU")
    executed = [
        e for line in cpu.lines for e in line.events if e.name.startswith("CommonPjRtLoadedExecutable::Execute (")
    ]
    assert len(executed) == len({dict(event.stats)["run_id"] for event in executed}) == 4
    assert 2 * 8192**3 / h200_seconds()["matmul bfloat16 8192"] > 0.6e15
    with pytest.raises(ValueError, match="there is no such file; there is 'h200_plain_step.xplane.pb', "):
        recorded("h100")
