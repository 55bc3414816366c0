"""More devices than a process carries, and numbers that mean nothing, are refused before anything is made."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.notebook.magics import PathwaysMagics
from pathways_nb.runtime import local_islands
from pathways_nb.runtime.sim.simulated_pod import SimulatedPod
from pathways_nb.util import limits

HUGE = 10**400
CPU = (
    "virtual CPU devices; at most 1024 on 128 islands are made, which take 10,000 threads of this process. Take fewer,"
)
SIM = "simulated devices; at most 1048576 on 65536 islands are simulated, since every summary goes through all of them,"
TOO_MANY: list[tuple[str, dict[str, Any], str]] = [
    ("cpu", {"islands": 99999999}, f"attach(islands=99999999, devices_per_island=4): 99999999 islands with in all 399999996 {CPU}"),
    ("cpu", {"islands": 1, "devices_per_island": 100_000}, f"devices_per_island=100000): 1 island with in all 100000 {CPU}"),
    ("cpu", {"islands": 129, "devices_per_island": 1}, f"129 islands with in all 129 {CPU}"),
    ("cpu", {"islands": HUGE}, "attach(islands=a number of about 400 digits, devices_per_island=4): a number of about 400"),
    ("auto", {"islands": 1025, "devices_per_island": 1}, f"1025 islands with in all 1025 {CPU}"),
    ("sim:tpu_v3:999999999x8", {}, f"attach('sim:tpu_v3:999999999x8', islands=999999999, devices_per_island=8): 999999999 islands with in all 7999999992 {SIM}"),
    ("sim:tpu_v3", {"islands": 65537, "devices_per_island": 2}, f"65537 islands with in all 131074 {SIM}"),
    ("sim:gpu_h200_sxm", {"devices_per_island": 2**20 + 1}, f"1 island with in all 1048577 {SIM}"),
    ("sim:tpu_v3", {"devices_per_host": HUGE}, "attach(devices_per_host=a number of about 400 digits): 1 island with in all a n"),
    ("sim:tpu_v3:1x100000", {}, "a pod of tpu_v3 has 32 × 32 (2048 devices); use several islands of up to"),
]  # fmt: skip
MEANINGLESS: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    *(
        (kind, {name: value}, pw.PlaceError, f"attach({name}={value!r}): a whole number of at least 1 is needed.")
        for kind in ("cpu", "sim:tpu_v3")
        for name in ("islands", "devices_per_island")
        for value in (-1, 0, True, 2.0, float("nan"), float("inf"), "4")
    ),
    *(
        (kind, {"hbm": value}, pw.UsageError, "a number of bytes per device of at least 1 is needed, such as hbm=16e9, and at")
        for kind in ("cpu", "sim:tpu_v3")
        for value in (-1, 0.5, True, float("nan"), float("inf"), 1e300, HUGE, "16e9")
    ),
    ("cpu", {"hbm": HUGE}, pw.UsageError, "attach(hbm=a number of about 400 digits): a number of bytes per device of at lea"),
    ("cpu", {"hbm": 1e300}, pw.UsageError, "attach(hbm=1e+300): a number of bytes per device of at least 1 is needed, such a"),
    *(
        (kind, {"dcn_latency": value}, pw.UsageError, "a finite number of seconds of at least 0 is needed, and at most 3600, for")
        for kind in ("cpu", "sim:tpu_v3")
        for value in (-1e-9, True, float("nan"), float("inf"), 1e300, HUGE)
    ),
    *(
        ("sim:tpu_v3", {"noise": value}, pw.UsageError, "a number of at least 0 is needed, such as noise=0.05, and at most 10: it is")
        for value in (-1, True, float("nan"), float("inf"), 1e300, HUGE)
    ),
    ("sim:tpu_v3:" + "9" * 5000 + "x8", {}, pw.UsageError, 'write "sim", "sim:CHIP" or "sim:CHIP:ISLANDSxDEVICES".'),
    ("sim:tpu_v3:٤x8", {}, pw.UsageError, 'write "sim", "sim:CHIP" or "sim:CHIP:ISLANDSxDEVICES".'),
]  # fmt: skip


@pytest.fixture
def nothing_made(monkeypatch):
    """Neither devices nor islands are made."""

    def made(*args: Any, **kwargs: Any) -> None:
        raise AssertionError(f"made {args} {kwargs}")

    monkeypatch.setattr(local_islands, "_make_client", made)
    monkeypatch.setattr(SimulatedPod, "__init__", made)


@pytest.mark.parametrize(("kind", "options", "text"), TOO_MANY)
def test_more_than_can_be_carried_is_refused_with_the_bound(controller, nothing_made, kind, options, text) -> None:
    with pytest.raises(pw.PlaceError, match=re.escape(text)) as error:
        pw.attach(kind, **options)
    assert len(str(error.value)) < 500
    assert pw.attach("cpu", islands=2, devices_per_island=4) is controller, "what was attached still is"


@pytest.mark.parametrize(("kind", "options", "error", "text"), MEANINGLESS)
def test_what_is_no_number_of_that_kind_is_refused(controller, nothing_made, kind, options, error, text) -> None:
    with pytest.raises(error, match=re.escape(text)) as raised:
        pw.attach(kind, **options)
    assert len(str(raised.value)) < 500


def test_the_magic_refuses_alike(controller, nothing_made) -> None:
    attach = PathwaysMagics(shell=None).pathways_line
    with pytest.raises(pw.PlaceError, match="99999999 islands with in all 399999996 virtual CPU devices; at most 1024"):
        attach("attach cpu --islands 99999999")
    with pytest.raises(pw.PlaceError, match="999999999 islands with in all 7999999992 simulated devices; at most"):
        attach("attach sim:tpu_v3:999999999x8")
    with pytest.raises(pw.UsageError, match=r"attach\(hbm=nan\)"):
        attach("attach cpu --hbm nan")


def test_a_point_of_a_sweep_that_asks_for_too_many_is_a_row_with_the_bound(nothing_made) -> None:
    found = pw.sweep(lambda n: pw.attach("sim:tpu_v3", islands=n), n=[10**9, 10**18])
    assert ["at most 1048576 on 65536 islands" in row["error"] for row in found.rows] == [True, True]


@pytest.mark.parametrize("kind", ["cpu", "sim:tpu_v3"])
def test_no_more_are_added_than_can_be_attached(kind) -> None:
    with pw.attach(kind, islands=1, devices_per_island=2) as controller:
        bound = CPU if kind == "cpu" else SIM
        for count in (10**8, HUGE):
            with pytest.raises(pw.PlaceError, match=re.escape(bound)) as error:
                controller.add(devices=count)
            assert str(error.value).startswith("add(devices=")
        for meaningless in (0, -1, True, 2.5, float("nan")):
            with pytest.raises(
                pw.PlaceError, match=re.escape(f"add(devices={meaningless!r}): a whole number of at least 1")
            ):
                controller.add(devices=meaningless)  # type: ignore[arg-type]
        assert controller.islands == (2,)
        assert controller.add(devices=2) == 1


def test_as_many_as_the_bound_are_simulated() -> None:
    with pw.attach("sim:gpu_h200_sxm", islands=2, devices_per_island=2**19) as controller:
        assert controller.islands == (2**19,) * 2
        with pytest.raises(pw.PlaceError, match="3 islands with in all 1048577 simulated devices"):
            controller.add(devices=1)


def test_numbers_of_numpy_are_numbers_and_a_run_is_saved_with_them(tmp_path) -> None:
    islands, devices = np.int64(1), np.int32(2)
    for kind in ("cpu", "sim:tpu_v3"):
        with pw.attach(kind, islands=islands, devices_per_island=devices), pw.record() as run:
            pass
        run.save(tmp_path / "a.run")
        assert pw.load(tmp_path / "a.run").about["options"]["devices_per_island"] == 2


@pytest.mark.parametrize("seconds", [HUGE, 1e300, float("nan"), float("inf"), -1, True])
def test_times_that_no_run_lasts_are_refused(controller, left, seconds) -> None:
    with pytest.raises(pw.UsageError, match="a positive, finite number of seconds is needed, at most 1e[+]09"):
        pw.work(seconds, on=left)
    program = pw.program(lambda x: pw.work(1.0, on=left, name="busy")(x))
    with pytest.raises(pw.UsageError, match=r"write a number of seconds, 0 or more \(at most 1e[+]09\)\.$"):
        pw.predict(program, 1.0, seconds={"busy": seconds})
    with pytest.raises(pw.UsageError, match=r"a whole number of bytes of at least 0 is needed, at most 1e[+]15\.$"):
        pw.work(1.0, on=left, output_bytes=seconds if seconds != 1 else 0.5)


def test_the_bounds_are_no_less_than_what_is_measured() -> None:
    """README and benches: 2048 devices an island, 65,536 a node, 64 islands."""
    limits.check_simulated("", 512, 2**20)
    limits.check_simulated("", 2**16, 2**20)
    limits.check_virtual("", 128, 1024)
