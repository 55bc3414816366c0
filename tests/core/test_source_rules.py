"""The rules of the house, read from the source: what the front door shows, what is documented, how tests wait."""

from __future__ import annotations

import ast
import inspect
from collections import Counter
from pathlib import Path

import pytest

import pathways_nb as pw
from tests.conftest import ROOT

PACKAGE = ROOT / "pathways_nb"
NAMESPACES = ("terapipe",)
"""Packages that are public as a whole; each lists its names."""


def files(*parts: str) -> list[Path]:
    """Every source file below a folder of the package."""
    return sorted(PACKAGE.joinpath(*parts).rglob("*.py"))


SOURCES = (PACKAGE, ROOT / "widgets", ROOT / "datasets")


def test_a_name_of_a_class_or_a_file_stands_for_one_thing() -> None:
    paths = [path for folder in SOURCES for path in folder.rglob("*.py") if path.name != "__init__.py"]
    classes = Counter(
        node.name for path in paths for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ClassDef)
    )
    assert [name for name, times in classes.items() if times > 1] == []
    assert [name for name, times in Counter(path.name for path in paths).items() if times > 1] == []


@pytest.mark.parametrize("path", files("controller"), ids=lambda p: p.name)
def test_the_controller_does_no_input_or_output(path: Path) -> None:
    calls = [
        n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    ]
    assert not {call.func.id for call in calls} & {"print", "open", "input"}  # type: ignore[attr-defined]


def test_the_front_door_is_only_re_exports() -> None:
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    assert ast.get_docstring(tree)
    allowed = (ast.Import, ast.ImportFrom)
    rest = [node for node in tree.body[1:] if not isinstance(node, allowed)]
    assert [ast.unparse(node.targets[0]) for node in rest if isinstance(node, ast.Assign)] == ["__all__"]
    assert len(rest) == 1


def test_all_names_are_there_sorted_and_nothing_else_is() -> None:
    assert pw.__all__ == sorted(pw.__all__)
    assert len(set(pw.__all__)) == len(pw.__all__)
    public = {name for name, value in vars(pw).items() if not name.startswith("_") and not inspect.ismodule(value)}
    assert public | set(NAMESPACES) == set(pw.__all__)


@pytest.mark.parametrize("name", pw.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    assert inspect.getdoc(getattr(pw, name)), name


@pytest.mark.parametrize("namespace", NAMESPACES)
def test_every_name_of_a_namespace_is_there_sorted_and_documented(namespace: str) -> None:
    package = getattr(pw, namespace)
    assert package.__all__ == sorted(package.__all__)
    assert [name for name in package.__all__ if not inspect.getdoc(getattr(package, name))] == []


@pytest.mark.parametrize(
    "name", ["Chip", "Computation", "Controller", "Future", "Graph", "Network", "Program", "Run", "VirtualSlice"]
)
def test_every_public_method_is_documented(name: str) -> None:
    cls = getattr(pw, name)
    own = {k: v for k, v in vars(cls).items() if not k.startswith("_") and (callable(v) or isinstance(v, property))}
    assert [method for method, value in own.items() if not inspect.getdoc(value)] == []


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=lambda path: path.name)
def test_no_test_sleeps_reads_a_clock_or_is_skipped(path: Path) -> None:
    """What a test waits for is a condition (see ``tests/support/waiting.py``), and it runs everywhere.

    Without a Chromium a person gets the other tests; what is stamped on the machine's clock is compared with it.
    """
    allowed = {
        "__main__.py": {"time.monotonic"},  # for how long to try programs
        "chromium.py": {"pytest.skip"},
        "durations.py": {"time.monotonic"},
        "fuzz.py": {"time.monotonic"},
        "interrupter.py": {"time.perf_counter", "time.sleep"},  # interrupts come at random times
        "test_fork.py": {"pytest.mark.skipif"},  # of a system without fork
        "test_profile.py": {"time.perf_counter"},
        "test_record.py": {"time.perf_counter"},
        "trying.py": {"time.monotonic"},
        "test_client_turns.py": {"time.sleep"},  # in a thread that is to be known as asleep
        "waiting.py": {"time.monotonic", "time.sleep"},
    }
    used = {ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
    clocks = {f"time.{name}" for name in ("sleep", "monotonic", "perf_counter", "time")}
    skips = {f"pytest.{name}" for name in ("skip", "importorskip", "mark.skip", "mark.skipif", "mark.xfail")}
    assert used & (clocks | skips) <= allowed.get(path.name, set())
    assert not any(name.endswith(".wait_for_timeout") for name in used)


def test_no_argument_is_called_slice() -> None:
    """Devices are always ``on=``; token slices always ``token_slices=`` (API.md)."""
    spaces = [pw, *(getattr(pw, namespace) for namespace in NAMESPACES)]
    for name, value in ((name, getattr(space, name)) for space in spaces for name in space.__all__):
        if inspect.isfunction(value):
            assert not {"slice", "slices"} & set(inspect.signature(value).parameters), name
