"""Calibrating attached devices: what it finds is plausible, is kept, and leaves everything as it was.

No speed of this machine is tested: only what holds on any.
"""

from __future__ import annotations

import json
import sys
from types import ModuleType

import pytest

import pathways_nb as pw
from pathways_nb.calibration import kernels
from pathways_nb.calibration.calibrate import calibrated
from pathways_nb.cost.calibration.calibrated import Calibration
from pathways_nb.cost.calibration.samples import Measured
from pathways_nb.cost.calibration.this_machine import fit, model_of
from pathways_nb.cost.jaxpr.node_work import Amount, Work
from pathways_nb.session import default_controller
from pathways_nb.util.progress import Progress
from tests.support.measured_machine import forget_calibrations, measured

MODULE: ModuleType = sys.modules[
    "pathways_nb.calibration.calibrate"
]  # the name of the function hides that of its module


@pytest.fixture(autouse=True)
def _forgetful(monkeypatch, tmp_path) -> None:
    """Files of this test only, and nothing kept from another."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    forget_calibrations(monkeypatch)


@pytest.fixture
def small(watchdog):
    """Two islands of two devices."""
    made = pw.attach("cpu", islands=2, devices_per_island=2)
    pw.reset()
    return made


@pytest.fixture
def pretended(monkeypatch) -> list[bool]:
    """Measurements of a machine that is known, in no time; whether each was a quick one."""
    asked: list[bool] = []

    def measure(controller: pw.Controller, quick: bool, say) -> Measured:
        asked.append(quick)
        return measured(devices=min(controller.islands), islands=len(controller.islands))

    monkeypatch.setattr(MODULE, "measure", measure)
    return asked


@pytest.mark.slow
def test_a_real_one_finds_what_holds_on_any_machine(small, tmp_path) -> None:
    found = pw.calibrate(quick=True)
    model = found.model
    kinds = [check.kind for check in found.checks]
    assert {"launch", "matmul", "elementwise", "all-reduce", "host to island", "island to island"} <= set(kinds)
    assert all(check.noise >= 0 and check.samples >= 2 for check in found.checks)
    assert 1 <= model.efficiency.at_once <= 2
    assert model.host.call >= 0
    assert model.host.launch >= 0
    island = model.topology(2)

    def seconds(size: float) -> float:
        return model.node(Work((Amount("matmul", "float32", size, size, size),)), island, {"x": 2}).seconds

    assert 0 <= seconds(0) <= seconds(1e9) < seconds(1e12), "what other work hides is taken for nothing"
    assert model.transfer(10**6, "DCN", island, 2, 2).seconds > 0
    assert pw.calibration() == found
    assert [file.name for file in (tmp_path / "pathways_nb").iterdir()] == ["calibration-cpu-2-2.json"]


def test_every_kernel_is_what_it_is_called_with_elementwise_operations_at_most() -> None:
    for kernel in (*kernels.operations(quick=False), *kernels.large(quick=False)):
        work = kernel.work(2)
        own = work.of(kernel.kind.removesuffix(" bfloat16"))
        assert own.flops + own.read + own.written > 0, kernel.kind
        assert {one.kind for one in work.amounts if one.read > 64 * kernel.repeats} <= {
            own.kind,
            "elementwise",
        }  # one number is looked up
        assert work.collectives == ()
    for kernel in kernels.collectives(4, quick=False):
        (one,) = kernel.work(4).collectives
        assert (one.kind, one.group, one.axes) == (kernel.kind, 4, ("x",))


def test_a_quick_one_has_the_classes_that_programs_are_made_of() -> None:
    full, quick = ([k.kind for k in kernels.operations(quick=q)] for q in (False, True))
    assert set(quick) == {"matmul", "elementwise", "transcendental", "reduction", "movement"} < set(full)
    assert len(quick) < len(full) / 2


def test_it_is_kept_for_this_process_and_the_next(small, pretended, monkeypatch) -> None:
    with pytest.raises(
        pw.UsageError, match=r"there is none of 2 islands × 2 cpu devices yet. Make it: pw.calibrate\(\)"
    ):
        pw.calibration()
    found = pw.calibrate()
    assert pw.calibration() is found
    forget_calibrations(monkeypatch)
    assert pw.calibration() == found
    assert calibrated(small) == found.model
    assert pretended == [False]
    assert found.model.name == "here: 2 islands × 2 cpu devices"
    assert {"processor", "cores", "jax", "islands"} <= set(found.machine)


def test_without_one_a_quick_one_is_made_and_said_so(small, pretended, capsys) -> None:
    model = calibrated(small)
    assert pretended == [True]
    assert calibrated(small) is model
    assert pretended == [True]
    assert capsys.readouterr().err.startswith("no calibration of 2 islands × 2 cpu devices yet: measuring quickly;")


def test_without_a_controller_it_is_the_usual_one_s(small, pretended) -> None:
    assert calibrated(None).name == "here: 2 islands × 4 cpu devices"
    assert default_controller.peek() is small


def test_one_of_another_machine_is_refused_with_both_named(small, pretended, tmp_path, monkeypatch) -> None:
    found = pw.calibrate()
    theirs = Calibration(found.model, found.checks, {**found.machine, "processor": "Abacus 3000"})
    theirs.save(path := tmp_path / "theirs.json")
    with pytest.raises(
        pw.UsageError, match="theirs.json: this calibration is of another machine .processor: Abacus 3000"
    ):
        pw.calibration(path)
    theirs.save(tmp_path / "pathways_nb" / "calibration-cpu-2-2.json")
    forget_calibrations(monkeypatch)
    for ask in (pw.calibration, lambda: calibrated(small)):
        with pytest.raises(pw.UsageError, match=r"processor: Abacus 3000.*here it is processor: .*pw.calibrate\(\)"):
            ask()
    assert pw.calibrate() == found  # the way out that the error names


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"version": 1}, "this calibration is of version 1, of an older pathways_nb; this one reads version 2: "),
        ({"machine": {"processor": "Abacus 3000"}}, "this calibration is of another machine (processor: Abacus 3000, "),
    ],
)
def test_a_quick_one_that_holds_no_more_is_measured_anew(
    small, pretended, tmp_path, capsys, monkeypatch, changed, why
) -> None:
    """One that took long is refused, as it says: a few seconds' worth does not stand for it."""
    pw.calibrate(quick=True)
    path = tmp_path / "pathways_nb" / "calibration-cpu-2-2.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changed))
    forget_calibrations(monkeypatch)
    model = calibrated(small)
    said = capsys.readouterr().err
    assert why in said
    assert said.endswith(": measuring quickly; pw.calibrate() measures more, for later sessions\n")
    assert model == calibrated(small)
    assert pretended == [True, True]
    path.write_text(json.dumps(json.loads(path.read_text()) | changed | {"quick": False}))
    forget_calibrations(monkeypatch)
    with pytest.raises(pw.UsageError, match=r"calibration-cpu-2-2.json: this calibration is of .*: pw.calibrate\(\)"):
        pw.attach("sim:here")
    assert default_controller.peek() is small


def test_what_was_attached_and_its_results_stay(small, pretended) -> None:
    place = pw.virtual_slice(2)
    double = pw.jit(lambda v: v * 2, on=place)
    before = double(1.0)
    with pw.record() as run:
        pw.calibrate()
    assert default_controller.peek() is small
    assert float(before) == 2.0
    assert len(run.events.of_kind("compute", "enqueue")) == 0


def test_an_interrupt_leaves_nothing_behind(small, monkeypatch, tmp_path) -> None:
    """The second round is broken off: nothing is stored, and the controller works."""
    steps: list[str] = []

    def tell(self: Progress, line: str) -> None:
        steps.append(line)
        if len(steps) == 3:
            raise KeyboardInterrupt

    monkeypatch.setattr(Progress, "tell", tell)
    with pytest.raises(KeyboardInterrupt):
        pw.calibrate(quick=True)
    assert default_controller.peek() is small
    assert not (tmp_path / "pathways_nb").exists()
    assert float(pw.jit(lambda v: v + 1, on=pw.virtual_slice(2))(1.0)) == 2.0


def test_simulated_devices_cannot_be_measured(small, monkeypatch) -> None:
    object.__setattr__(small.attach_options, "kind", "sim")
    try:
        with pytest.raises(pw.UsageError, match=r'has no devices to measure. Attach some: pw.attach\("cpu"\)'):
            pw.calibrate()
    finally:
        object.__setattr__(small.attach_options, "kind", "cpu")


def test_the_model_of_a_calibration_is_for_the_same_shape() -> None:
    model = model_of(fit(measured()), "known")
    assert model.topology(4).domain == 4
    assert model.topology(4).hosts == 1


def test_the_file_is_plain(small, pretended, tmp_path) -> None:
    pw.calibrate()
    written = json.loads((tmp_path / "pathways_nb" / "calibration-cpu-2-2.json").read_text())
    assert written["quick"] is False
    assert written["machine"]["islands"] == [2, 2]
