"""A calibration's file: what is written comes back, and what is no calibration of this machine is refused."""

from __future__ import annotations

import json
from functools import partial

import pytest

import pathways_nb as pw
from pathways_nb.cost.calibration.calibrated import Calibration, OutdatedError, load
from pathways_nb.cost.calibration.fitted import Check
from pathways_nb.cost.calibration.this_machine import fit, model_of
from tests.support.measured_machine import measured

FIT = fit(measured())
MACHINE = {"processor": "Abacus 3000", "cores": 2, "jax": "0.10.2", "devices": "cpu", "islands": [4, 4]}
FOUND = Calibration(model_of(FIT, "here: 2 islands × 4 cpu devices"), tuple(FIT.judge()), MACHINE)


@pytest.fixture
def path(tmp_path):
    FOUND.save(tmp_path / "new folder" / "found.json")
    return tmp_path / "new folder" / "found.json"


@pytest.fixture
def changed(path):
    """The file with some of it replaced."""

    def change(part: str, **values):
        content = json.loads(path.read_text())
        (content[part] if part else content).update(values)
        path.write_text(json.dumps(content))
        return partial(load, path)

    return change


def test_what_is_written_comes_back(path) -> None:
    again = load(path)
    assert again == FOUND
    assert hash(again.model) == hash(FOUND.model)
    for part in ("chip", "network", "host", "efficiency"):
        one, other = (getattr(found.model, part) for found in (again, FOUND))
        assert one.origins == other.origins
    assert [file.name for file in path.parent.iterdir()] == ["found.json"]


def test_every_number_is_written_with_its_origin(path) -> None:
    written = json.loads(path.read_text())
    assert written["machine"] == MACHINE
    assert written["host"]["call"][1:] == ["measured here", ""]
    assert written["host"]["per_host"] == [0.0, "assumed", "an island here has one host, which message counts"]
    assert path.stat().st_size < 10_000


def test_it_says_how_far_to_trust_it() -> None:
    lines = repr(FOUND).splitlines()
    assert lines[0] == "<calibration here: 2 islands × 4 cpu devices>"
    assert lines[1].split() == ["class", "sizes", "noise", "held-out", "error"]
    assert lines[3].split() == ["matmul", "8", "10%", "0%"]
    assert lines[-1].startswith("noise: distance of the quartiles")
    assert "<td>matmul</td><td>8</td><td>10%</td><td>0%</td>" in FOUND._repr_html_()
    few = fit(measured(devices=1, islands=1))
    assert "launch" in repr(Calibration(FOUND.model, tuple(few.judge()), MACHINE, quick=True))


def test_another_machine_is_refused_with_both_named() -> None:
    FOUND.refuse_elsewhere(dict(MACHINE), "found.json")
    with pytest.raises(pw.UsageError) as refused:
        FOUND.refuse_elsewhere({**MACHINE, "processor": "Difference Engine", "cores": 8}, "found.json")
    assert str(refused.value) == (
        "found.json: this calibration is of another machine (processor: Abacus 3000, cores: 2); here it is "
        "processor: Difference Engine, cores: 8. Measure this one: pw.calibrate()."
    )


@pytest.mark.parametrize(("version", "whose"), [(1, "an older"), (3, "a newer")])
def test_another_version_is_refused_as_that(changed, version, whose) -> None:
    with pytest.raises(OutdatedError) as refused:
        changed("", version=version, checks="not as this version has them", quick=True)()
    assert refused.value.quick
    assert str(refused.value).endswith(
        f"found.json: this calibration is of version {version}, of {whose} pathways_nb; this one reads version 2. "
        "Measure again: pw.calibrate()."
    )


def test_a_high_error_is_warned_about_where_noise_does_not_explain_it() -> None:
    checks = [Check("matmul", 8, 0.1, 0.05), Check("permute", 5, 0.5, 0.45), Check("sort", 8, 0.1, 0.313)]
    found = Calibration(FOUND.model, (*checks, Check("launch", 1, 0.9, None)), MACHINE)
    warning = "Warning: held-out errors of 25% and more: sort (31%). What is simulated of these is as far off."
    assert repr(found).splitlines()[-1] == warning
    assert f"<p>{warning}</p>" in found._repr_html_()
    assert "Warning" not in repr(FOUND) + FOUND._repr_html_()


def test_a_misspelt_field_names_the_nearest(changed) -> None:
    with pytest.raises(
        pw.UsageError, match=r"found.json: host: there is no field 'messsage'; did you mean 'message'\?"
    ):
        changed("host", messsage=[1e-4, "measured here", ""])()


@pytest.mark.parametrize(
    ("part", "values", "text"),
    [
        ("host", {"call": [-1.0, "measured here", ""]}, "host: call is -1.0; write a finite number of seconds"),
        ("efficiency", {"matmul": [1.5, "measured here", ""]}, "efficiency: matmul is 1.5; write a number above 0"),
        ("chip", {"hbm_bw": [1e9, "guessed", ""]}, "chip: hbm_bw: 'guessed' is no kind of origin"),
        ("", {"host": {}}, "host: lacks call, message, per_host, launch, notice, device_launch"),
        (
            "",
            {"format": "pathways_nb.run"},
            "format is 'pathways_nb.run', not one of 'pathways_nb.calibration'; this is no calibration, or it is damaged",
        ),
        (
            "",
            {"version": "2"},
            "version is '2', not a whole number from 0 to .*; this is no calibration, or it is damag",
        ),
        ("", {"network": None}, "network is None, not an object; .* Measure again: pw.calibrate()"),
        (
            "",
            {"checks": [["matmul", 8, "much", None]]},
            r"checks\[0\]\[2\] is 'much', not a number from 0 to .*; this i",
        ),
        ("", {"checks": [["matmul", 8, 0.1, float("inf")]]}, r"checks\[0\]\[3\] is inf, not a number from 0 to"),
        ("", {"checks": [["matmul", -1, 0.1, None]]}, r"checks\[0\]\[1\] is -1, not a whole number from 0 to"),
        ("", {"quick": "a"}, "quick is 'a', not true or false; this is no calibration"),
    ],
)
def test_what_no_machine_has_is_refused(changed, part, values, text) -> None:
    with pytest.raises(pw.UsageError, match=f"found.json: {text}"):
        changed(part, **values)()


@pytest.mark.parametrize(
    ("content", "text"),
    [
        (
            b'{"format": "pathways',
            "not JSON, line 1 column 12: .*; this is no calibration, or it is damaged",
        ),
        (b"\xff\xfe", "cannot be read"),
        (b"[]", r"it is \[\], not an object; this is no calibration"),
        (b"[" * 100_000, "brackets are nested more deeply than Python can read; this is no calibration"),
    ],
)
def test_a_damaged_file_is_refused(path, content, text) -> None:
    path.write_bytes(content)
    with pytest.raises(pw.UsageError, match=text):
        load(path)


def test_a_file_that_is_not_there_is_missing_and_not_damaged(tmp_path) -> None:
    with pytest.raises(FileNotFoundError):
        load(tmp_path / "none.json")
