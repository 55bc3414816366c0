"""Every door that reads text or a file: whatever comes in, the error is the project's own and names what and where."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import pathways_nb as pw
from pathways_nb.cost.calibration import calibrated
from pathways_nb.cost.calibration.fitted import Check
from pathways_nb.cost.efficiency import EFFICIENCY
from pathways_nb.cost.hardware.host_costs import HOST
from pathways_nb.cost.model import CostModel
from tests.core.results.damaged_runs import FOREIGN, NASTY

BRACKETS, DIGITS = "[" * 100_000, "9" * 5_000
OWN = (pw.PathwaysError, FileNotFoundError)


# ---- schedules as text


@pytest.mark.parametrize(
    "text", ["0F" + "9" * 4500, "9" * 4500 + "F0", "0F0." + "9" * 4500, "(0F0;0B" + "9" * 4500 + ")OVERLAP_F_B"]
)
def test_numbers_of_thousands_of_digits_are_refused_where_they_stand(text) -> None:
    with pytest.raises(pw.UsageError) as error:
        pw.Schedule.parse(f"0F0 0B0\n1F0 {text}")
    assert re.fullmatch(
        r"line 2, action 2: '.{50,58}… has a number of 4500 digits\. Stages, microbatches and token slices are counted "
        r"from 0, and have at most 18 digits\.",
        str(error.value),
    ), error.value


@pytest.mark.parametrize("text", ["0F" + "1" * 19, "٣F0", "²F0", "0F0\0", "x" * 10**6, "(((0F0"])
def test_what_is_no_action_is_refused_in_a_line(text) -> None:
    with pytest.raises(pw.UsageError, match="^line 1, action 1: ") as error:
        pw.Schedule.parse(text)
    assert len(str(error.value)) < 400


def test_what_is_done_too_often_names_a_few_of_the_places() -> None:
    with pytest.raises(pw.ScheduleError) as error:
        pw.Schedule.parse("0F0 " * 10_000 + "0B0").check()
    places = "; ".join(f"device 0, action {number}" for number in range(1, 6))
    assert str(error.value) == f"0F0 is done 10000 times (B is I and W at once): {places}; …. Do it once."


def test_random_schedules_as_text_are_refused_in_our_words_or_work() -> None:
    chance = random.Random(0)
    words = [
        "0F0",
        "0B0",
        "1F0",
        "1B0",
        "0I0",
        "0W0",
        "a0F0",
        "0F0.1",
        "(0F1;1B0)OVERLAP_F_B",
        "\n",
        ",",
        "0F999999999999999999",
        "F",
        "0F",
        "\0",
    ]
    worked = 0
    for _ in range(400):
        text = " ".join(chance.choices(words, k=chance.randint(0, 8)))
        try:
            schedule = pw.Schedule.parse(text)
            worked += bool(schedule.check() and schedule.timing() and schedule.size)
        except pw.PathwaysError as error:
            assert not FOREIGN.search(str(error)), error
    assert worked


# ---- chips, networks and calibrations as files


def written(path: Path, text: str | bytes) -> Path:
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    return path


FILES: list[tuple[str | bytes, str]] = [
    (BRACKETS, "brackets are nested more deeply than Python can read"),
    ('{"base": "tpu_v3", "name": ' + "[" * 60 + "]" * 60 + "}", "brackets are nested more than 50 deep"),
    ('{"hbm_bw": ' + DIGITS + "}", "a number has more digits than Python reads (4300)"),
    ("{'base': 1}", "not JSON, line 1 column 2: Expecting property name"),
    (b"\xff\xfe", "cannot be read ('utf-8' codec can't decode"),
    ("", "not JSON, line 1 column 1: Expecting value"),
    ("\ufeff{}", "not JSON, line 1 column 1: Unexpected UTF-8 BOM"),
]
LOADS: dict[str, Callable[[Path], Any]] = {"chip": pw.chip, "network": pw.network, "calibration": calibrated.load}


@pytest.mark.parametrize("door", LOADS)
@pytest.mark.parametrize(("text", "reason"), FILES, ids=[reason[:30] for _, reason in FILES])
def test_files_that_python_cannot_read_are_refused_by_name(tmp_path, door, text, reason) -> None:
    path = written(tmp_path / "mine.json", text)
    with pytest.raises(pw.UsageError, match=re.escape(f"{path}: {reason}")):
        LOADS[door](path)


@pytest.mark.parametrize("door", LOADS)
def test_a_folder_and_a_path_that_there_cannot_be_are_refused(tmp_path, door) -> None:
    with pytest.raises(pw.UsageError, match=r"cannot be read \(\[Errno 21\] Is a directory"):
        LOADS[door](tmp_path)
    with pytest.raises(pw.UsageError, match=r"cannot be read \(embedded null"):
        LOADS[door](Path("a\0b.json"))


def test_files_larger_than_any_of_their_kind_are_not_read(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("pathways_nb.util.json_text.MOST_TEXT", 2**20)
    path = written(tmp_path / "mine.json", " " * (2**20 + 1))
    for load in LOADS.values():
        with pytest.raises(
            pw.UsageError, match=r"mine.json: cannot be read \(more than 1 MiB, no file of this kind is"
        ):
            load(path)


def test_a_base_is_a_name_not_a_file(tmp_path) -> None:
    """A file that names itself would be read for ever."""
    path = tmp_path / "mine.json"
    written(path, json.dumps({"base": str(path)}))
    with pytest.raises(pw.UsageError, match=r"mine\.json: base is '.*; write a name of the table, not a file\.$"):
        pw.chip(path)


SOUND: dict[str, dict[str, Any]] = {
    "chip": {"base": "tpu_v3", "name": "mine", "hbm_bw": [2e12, "measured here", "stream"], "pod": [4, 4], "links": 4},
    "network": {"base": "tpu_dcn", "rtt": 1e-3, "efficiency": [0.5, "yours"]},
}


@pytest.fixture(scope="module")
def sound(tmp_path_factory) -> dict[str, dict[str, Any]]:
    """What a file of each kind holds."""
    path = tmp_path_factory.mktemp("sound") / "calibration.json"
    model = CostModel(pw.chip("tpu_v3"), pw.network("tpu_dcn"), HOST, EFFICIENCY, "mine")
    calibrated.Calibration(model, (Check("matmul", 3, 0.1, None),), {"cores": 2}).save(path)
    return SOUND | {"calibration": json.loads(path.read_text())}


@pytest.mark.parametrize("door", LOADS)
def test_random_damage_is_refused_in_our_words_or_loads(tmp_path, sound, door) -> None:
    chance, path, loaded = random.Random(1), tmp_path / "mine.json", 0
    for _ in range(400):
        content = json.loads(json.dumps(sound[door]))
        for _ in range(chance.choice((1, 1, 2))):
            inner = content
            while True:
                key = chance.choice(list(inner) if isinstance(inner, dict) else range(len(inner)))
                if not isinstance(inner[key], (dict, list)) or not inner[key] or chance.random() < 0.3:
                    break
                inner = inner[key]
            inner[key] = chance.choice(NASTY)
            if isinstance(inner, dict) and chance.random() < 0.2:
                inner[chance.choice(("x", "hbm", "\ud800", ""))] = inner.pop(key)
            content = json.loads(json.dumps(content))
        try:
            found = LOADS[door](written(path, json.dumps(content)))
            assert repr(found)
            loaded += 1
        except pw.UsageError as error:
            assert not FOREIGN.search(str(error)), error
            assert len(str(error)) < 1500, error
    assert loaded


# ---- options in words


@pytest.mark.parametrize("scale", [0, -1, float("nan"), float("inf"), True, 1e300, 10**400, "2", None])
def test_a_scale_of_style_that_draws_nothing_is_refused(scale) -> None:
    with pytest.raises(ValueError, match=r"^style\(scale=.*\): a positive number is needed, from 0.1 to 20\.$"):
        pw.style("screen", scale)


@pytest.mark.parametrize("name", [[], {}, None, 5, "x" * 10**6])
def test_a_name_of_style_that_is_none_is_refused(name) -> None:
    with pytest.raises(ValueError, match=r"^style\(.*\): choose one of 'screen', 'projector', 'paper'\.$") as error:
        pw.style(name)
    assert len(str(error.value)) < 200


@pytest.mark.parametrize("show", [5, [5], [None], {"graph": 1}, "x" * 10**5])
def test_views_that_are_none_are_refused_before_anything_is_recorded(controller, show) -> None:
    with (
        pytest.raises(ValueError, match=r"^show=.*(write names of views|there is no view)") as error,
        pw.record(show=show),
    ):
        raise AssertionError("the block ran")
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("width", [None, True, float("nan"), float("inf"), 10**400, [], "9" * 5000, "nan", "1e3px"])
def test_a_width_that_is_none_is_refused(tmp_path, width) -> None:
    with pytest.raises(ValueError, match=r"^savefig\(width=") as error:
        pw.schedule("gpipe", devices=2, microbatches=2).savefig(tmp_path / "a.svg", width)
    assert len(str(error.value)) < 400 or isinstance(width, str)
    assert not list(tmp_path.iterdir())
