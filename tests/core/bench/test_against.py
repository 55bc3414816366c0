"""Short benches beside those of a file: what counts as slower, what as noise, and what a file must hold."""

from __future__ import annotations

import json
import sys
import types

import pytest

from pathways_nb.__main__ import main
from pathways_nb.bench import against, report
from pathways_nb.bench.against import Change


@pytest.fixture
def toy(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, list[float]]]:
    """A bench ``toy``, whose repetitions find what is put into the list, last first; it has run before, too."""
    module = types.ModuleType("pathways_nb.bench.toy")
    monkeypatch.setattr(module, "SPEED", {"over_*": "higher", "steps_over_floor": "lower"}, raising=False)
    monkeypatch.setattr(module, "run", lambda short=False: {"figures": {}}, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(report, "names", lambda: ["toy"])
    found: list[dict[str, list[float]]] = []
    monkeypatch.setattr(against, "repeated", lambda name, say: short_report(found.pop()))
    return found


def short_report(repeats: dict[str, list[float]]) -> dict:
    figures = {name: sorted(values)[1] for name, values in repeats.items()}
    return {
        "bench": "toy",
        "commit": "c",
        "machine": {"cores": 2},
        "figures": figures,
        "detail": None,
        "repeats": repeats,
    }


@pytest.mark.parametrize(
    ("better", "before", "now", "real"),
    [
        ("higher", [1.0, 1.1, 1.2], [0.5, 0.5, 0.6], True),
        ("higher", [1.0, 1.1, 1.2], [0.9, 0.9, 1.05], False),  # one repetition reaches the others
        ("higher", [1.0, 1.1, 1.2], [0.9, 0.95, 0.99], False),  # apart, but by less than the repetitions differ
        ("lower", [1.0, 1.0, 1.0], [1.1, 1.1, 1.1], True),
        ("lower", [1.0, 1.0, 1.0], [1.0, 1.0, 1.0], False),
        ("lower", [1.0, 1.0, 1.0], [2.0, 2.0, 2.0, 2.0, 2.0, 4.5], True),  # one that is slower still hides nothing
    ],
)
def test_what_is_beyond_noise(better, before, now, real) -> None:
    assert Change("toy", "figure", better, before, now).is_real == real


def test_slower_and_faster_go_by_what_is_better() -> None:
    assert Change("toy", "over_loop", "higher", [2.0] * 3, [1.0] * 3).times == 2
    assert Change("toy", "steps", "lower", [2.0] * 3, [1.0] * 3).times == 0.5
    assert str(Change("toy", "over_loop", "higher", [2.0, 2.0, 2.1], [1.0] * 3)) == (
        "SLOWER by a factor of 2.00 (noise 0 %): over_loop 2 -> 1, higher is better"
    )


def test_what_became_slower_is_measured_twice_and_printed(toy, tmp_path, capsys) -> None:
    before = short_report({"over_loop": [1.0, 1.01, 1.02], "steps_over_floor": [3.0, 3.0, 3.1], "count": [1, 1, 1]})
    (file := tmp_path / "before.json").write_text(json.dumps([before]))
    slow = {"over_loop": [0.5, 0.51, 0.5], "steps_over_floor": [3.0, 3.05, 3.0], "count": [9, 9, 9]}
    toy += [slow, slow]
    assert main(["bench", "--against", str(file)]) == 1
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "toy: c -> c, on the same machine",
        "  SLOWER by a factor of 2.02 (noise 6 %): over_loop 1.01 -> 0.5, higher is better",
        "  1 of 2 figures unchanged within noise",
    ]
    assert said.err == "apart: once more …\n"
    assert toy == []


def test_what_is_slow_only_once_is_noise(toy, tmp_path, capsys) -> None:
    usual = {"over_loop": [1.0, 1.01, 1.02]}
    (file := tmp_path / "before.json").write_text(json.dumps(short_report(usual) | {"machine": {"cores": 9}}))
    toy += [usual, {"over_loop": [0.5, 0.51, 0.5]}]
    assert main(["bench", "toy", "--against", str(file)]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "toy: c -> c, on ANOTHER MACHINE or with other versions than {'cores': 9}",
        "  1 of 1 figures unchanged within noise",
    ]


def test_what_is_not_measured_any_more_is_missed(toy, tmp_path, capsys) -> None:
    (file := tmp_path / "before.json").write_text(json.dumps(short_report({"over_loop": [1.0] * 3, "count": [1] * 3})))
    toy += [{"over_line": [1.0] * 3}]
    assert main(["bench", "--against", str(file)]) == 1
    assert capsys.readouterr().out.splitlines()[1:] == [
        "  MISSING: over_loop is in the file and was not measured now",
        "  0 of 0 figures unchanged within noise",
    ]


def test_a_comparison_is_text_about_short_benches(toy, capsys) -> None:
    assert main(["bench", "--against", "before.json", "--json"]) == 2
    assert "leave out --short and --json" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        ("no JSON", "cannot be read"),
        (
            '{"bench": "toy"}',
            "holds no short benches ([0] lacks 'repeats'); write one with: python -m pathways_nb bench",
        ),
        (
            '{"bench": "toy", "repeats": {"a": [1, "b"]}}',
            "no short benches ([0].repeats.a[1] is 'b', not a number from",
        ),
        ("[" * 100_000, "cannot be read (brackets are nested more deeply than Python can read)"),
        ('[{"bench": "other", "repeats": {}}]', "does not hold toy; it holds other."),
    ],
)
def test_a_file_that_holds_nothing_to_compare_with_is_refused(toy, tmp_path, capsys, content, words) -> None:
    file = tmp_path / "before.json"
    if content:
        file.write_text(content)
    assert main(["bench", "toy", "--against", str(file)]) == 2
    assert words in capsys.readouterr().err


def test_a_bench_without_a_short_form_names_those_that_have_one(capsys) -> None:
    assert main(["bench", "soak", "--short"]) == 2
    assert capsys.readouterr().err == (
        "error: bench soak has no short form; these have: dispatch, fsdp, overlap, schedules, simulate.\n"
    )


def test_every_short_form_says_which_of_its_figures_are_speeds() -> None:
    short = [report.module_of(name) for name in report.names() if report.has_short_form(name)]
    assert len(short) == 5
    assert all(set(module.SPEED.values()) <= {"higher", "lower"} for module in short)


def test_a_repetition_is_a_process_of_its_own_and_the_median_counts(monkeypatch) -> None:
    values = iter([3.0, 1.0, 2.0])

    def run(command, **options):
        made = {"bench": "schedules", "figures": {"over": next(values)}, "detail": None}
        return types.SimpleNamespace(returncode=0, stdout=json.dumps(made), stderr="")

    monkeypatch.setattr(against.subprocess, "run", run)
    lines: list[str] = []
    found = against.repeated("schedules", lines.append)
    assert found["figures"] == {"over": 2.0}
    assert found["repeats"] == {"over": [3.0, 1.0, 2.0]}
    assert lines[0] == "bench schedules, short form: 1 of 3 …"
    monkeypatch.setattr(
        against.subprocess, "run", lambda *_, **__: types.SimpleNamespace(returncode=1, stdout="", stderr="it broke")
    )
    with pytest.raises(against.UsageError, match="bench schedules failed:\nit broke"):
        against.repeated("schedules")


def test_several_benches_are_a_list_and_one_is_an_object(toy, capsys) -> None:
    toy += [{"over_loop": [1.0, 1.0, 1.0]}] * 3
    assert main(["bench", "toy", "toy", "--short", "--json"]) == 0
    assert [one["bench"] for one in json.loads(capsys.readouterr().out)] == ["toy", "toy"]
    assert main(["bench", "toy", "--short", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["repeats"] == {"over_loop": [1.0, 1.0, 1.0]}
