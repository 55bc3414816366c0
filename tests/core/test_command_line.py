"""The command line: known commands, one JSON object, benches by name."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import types

import numpy as np
import pytest

from pathways_nb.__main__ import main
from pathways_nb.bench import report
from pathways_nb.course import course_folder
from tests.conftest import ROOT

NOTEBOOKS = [
    path for path in (ROOT / "notebooks").rglob("*") if path.is_file() and ".ipynb_checkpoints" not in path.parts
]


@pytest.fixture
def toy(monkeypatch):
    """A bench called ``toy`` that also prints; returns its result for changing."""
    result = {"figures": {"ratio": np.float32(1.5), "count": 3}, "detail": {"times": {"a": np.arange(2)}, "note": "n"}}

    def run():
        print("chatter")
        return result

    module = types.ModuleType("pathways_nb.bench.toy")
    monkeypatch.setattr(module, "run", run, raising=False)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    monkeypatch.setattr(report, "names", lambda: ["toy"])
    return result


def test_json_is_one_object_and_nothing_else(toy, capsys):
    assert main(["bench", "toy", "--json"]) == 0
    said = capsys.readouterr()
    printed = json.loads(said.out)
    assert list(printed) == ["bench", "commit", "machine", "figures", "detail"]
    assert printed["bench"] == "toy"
    assert printed["figures"] == {"ratio": 1.5, "count": 3}
    assert printed["detail"]["times"] == {"a": [0, 1]}
    assert said.err == "chatter\n"


def test_where_no_benches_are_installed_the_command_says_so_in_one_line():
    without = (
        "import sys; sys.modules['pathways_nb.bench'] = None; from pathways_nb.__main__ import main; sys.exit(main())"
    )
    for arguments in (["bench", "dispatch", "--short", "--json"], ["bench"], ["bench", "--against", "before.json"]):
        done = subprocess.run([sys.executable, "-c", without, *arguments], capture_output=True, text=True, check=False)
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr == "error: bench needs a clone of the project; an installed package holds no benches.\n"


def test_the_machine_is_described(toy):
    machine = report.measure("toy")["machine"]
    assert machine["cores"] >= 1
    assert machine["memory_bytes"] > 2**28
    assert machine["python"] == sys.version.split()[0]
    assert {"jax", "jaxlib", "platform"} < set(machine)


def test_the_table_names_machine_figures_and_detail(toy, capsys):
    assert main(["bench", "toy"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("bench toy: ")
    assert " cores, " in lines[0]
    assert [line.split() for line in lines[1:3]] == [["ratio", "1.5"], ["count", "3"]]
    assert lines[3:] == ["  times:", "    a: [0 1]", "  note: n"]


@pytest.mark.parametrize(
    ("figure", "unit"),
    [
        ("first_picture_seconds", "s"),
        ("controller_us_2048", "µs"),
        ("generation_ms_16x128_worst", "ms"),
        ("bytes_per_event", "bytes"),
        ("gang_ops_per_second", "/s"),
        ("gang_ops_over_simpy", ""),
        ("seconds_2048_over_8_devices", ""),
        ("null_ratio", ""),
        ("figure_10_four_islands_over_one_error", ""),
        ("graph_nodes_2", ""),
    ],
)
def test_a_figures_name_tells_its_unit(figure, unit):
    assert report.unit_of(figure) == unit


def test_the_table_has_units_and_a_bench_may_say_them(toy, capsys):
    toy["figures"] = {"warm_picture_seconds": 0.25, "figure_8_0_04_ms": 1.2, "count": 3}
    toy["units"] = {"figure_8_0_04_ms": "of JAX"}
    assert main(["bench", "toy"]) == 0
    lines = capsys.readouterr().out.splitlines()[1:4]
    assert lines == [
        "  warm_picture_seconds          0.25 s",
        "  figure_8_0_04_ms               1.2 of JAX",
        "  count                            3",
    ]


def test_a_figure_that_was_not_measured_is_refused(toy):
    toy["figures"]["ratio"] = float("nan")
    with pytest.raises(ValueError, match=r"bench toy: not a finite number: ratio; leave out"):
        report.measure("toy")


def test_an_unknown_bench_lists_those_there_are(toy, capsys):
    with pytest.raises(SystemExit) as stopped:
        main(["bench", "nope"])
    assert stopped.value.code == 2
    assert "argument NAME: 'nope' (choose from toy)" in capsys.readouterr().err


def test_the_commit_is_that_of_this_checkout(toy):
    made = report.measure("toy")["commit"]
    assert made is None or re.fullmatch(r"[0-9a-f]{12}(\+changes)?", made)


def test_no_bench_lists_those_there_are(toy, capsys):
    assert main(["bench"]) == 2
    assert capsys.readouterr().err == "error: bench needs the NAME of one or more of: toy; or --against FILE.\n"


def test_helpers_are_no_benches():
    assert "report" not in report.names()


def test_no_command_is_an_error(capsys):
    with pytest.raises(SystemExit) as stopped:
        main([])
    assert stopped.value.code == 2
    assert "COMMAND" in capsys.readouterr().err


def test_a_copy_of_the_course_keeps_what_is_the_users(tmp_path):
    (tmp_path / "02_dispatch.ipynb").write_text("my own")
    copied, kept = course_folder.copy_course(tmp_path)
    assert (copied, kept) == (len(NOTEBOOKS) - 1, 1)
    assert (tmp_path / "02_dispatch.ipynb").read_text() == "my own"
    copies = {path.relative_to(tmp_path) for path in tmp_path.rglob("*") if path.is_file()}
    assert copies == {path.relative_to(ROOT / "notebooks") for path in NOTEBOOKS}
    assert course_folder.copy_course(tmp_path) == (0, len(NOTEBOOKS))


def test_the_course_is_not_copied_onto_itself_or_into_a_file(tmp_path, capsys):
    assert main(["lab", str(ROOT / "notebooks")]) == 1
    assert "notebooks: this is the course itself; name another folder for your copy." in capsys.readouterr().err
    (tmp_path / "file").write_text("")
    assert main(["lab", str(tmp_path / "file")]) == 1
    said = capsys.readouterr().err
    assert "01_quickstart.ipynb cannot be written: " in said
    assert said.endswith("Name another folder.\n")
