"""The rules of the house, read from the source: who may import whom, and what the front door shows."""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import pathways_nb as pw

ROOT = Path(__file__).parent.parent.parent
PACKAGE = ROOT / "pathways_nb"
GROUND = tuple(f"pathways_nb.{name}" for name in ("errors", "forked", "json_text", "unique"))
"""What everything may stand on: it knows nothing of the rest."""


def files(*parts: str) -> list[Path]:
    """Every source file below a folder of the package."""
    return sorted(PACKAGE.joinpath(*parts).rglob("*.py"))


def imported(path: Path) -> Iterator[str]:
    """The full name of every module, or name of a module, that a file imports, type checking left out."""
    skipped: set[ast.AST] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            skipped.update(child for part in node.body for child in ast.walk(part))
        elif node in skipped:
            continue
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def reaches(path: Path, *modules: str) -> list[str]:
    """What a file imports from any of these modules."""
    return [name for name in imported(path) for module in modules if name == module or name.startswith(f"{module}.")]


def test_the_rules_are_checked_on_real_files() -> None:
    """A renamed folder would make the tests below pass for nothing."""
    for folder in ("program", "controller", "backends", "trace", "cost"):
        assert len(files(folder)) >= 2, folder
    assert "jax" in reaches(PACKAGE / "program" / "program.py", "jax")
    assert reaches(PACKAGE / "backends" / "local.py", "pathways_nb.controller")


@pytest.mark.parametrize("name", GROUND)
def test_the_ground_stands_on_nothing(name: str) -> None:
    path = ROOT / (name.replace(".", "/") + ".py")
    assert [module for module in reaches(path, "pathways_nb", "jax") if not module.startswith(GROUND)] == []


@pytest.mark.parametrize("path", files("controller"), ids=lambda p: p.name)
def test_the_controller_does_no_input_or_output(path: Path) -> None:
    io = ("jax", "jaxlib", "threading", "time", "asyncio", "queue", "bokeh", "ray", "IPython", "concurrent", "logging")
    assert reaches(path, *io) == []
    calls = [
        n for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Call) and isinstance(n.func, ast.Name)
    ]
    assert not {call.func.id for call in calls} & {"print", "open", "input"}  # type: ignore[attr-defined]


@pytest.mark.parametrize("path", files("controller"), ids=lambda p: p.name)
def test_the_controller_knows_only_graphs_plans_and_errors(path: Path) -> None:
    allowed = (
        "pathways_nb.controller",
        "pathways_nb.errors",
        "pathways_nb.plan.graph",
        "pathways_nb.plan.source_lines",
        "pathways_nb.plan.footprint",
        "pathways_nb.plan.virtual_slice",
        "pathways_nb.plan.plan",
    )
    ours = reaches(path, "pathways_nb")
    assert [n for n in ours if not n.startswith(allowed)] == []


@pytest.mark.parametrize("name", ["graph", "memory", "plan", "places"])
def test_graphs_and_plans_are_free_of_jax(name: str) -> None:
    """Transitively: the controller imports them."""
    pending, seen = [PACKAGE / "program" / f"{name}.py"], set()
    while pending:
        path = pending.pop()
        if path in seen:
            continue
        seen.add(path)
        assert reaches(path, "jax", "jaxlib", "threading", "time") == [], path
        for module in reaches(path, "pathways_nb"):
            candidates = [ROOT / (m.replace(".", "/") + ".py") for m in (module, module.rpartition(".")[0])]
            pending += [c for c in candidates if c.exists()]


@pytest.mark.parametrize("path", files("program"), ids=lambda p: p.name)
def test_programs_know_no_controller_and_no_backend(path: Path) -> None:
    assert [n for n in reaches(path, "pathways_nb") if not n.startswith(("pathways_nb.program", *GROUND))] == []
    assert reaches(path, "threading", "time", "bokeh", "IPython") == []


@pytest.mark.parametrize("path", [*files("trace"), *files("cost")], ids=lambda p: f"{p.parent.name}-{p.name}")
def test_trace_and_cost_stand_on_the_ground(path: Path) -> None:
    here = f"pathways_nb.{path.parent.name}"
    assert [n for n in reaches(path, "pathways_nb") if not n.startswith((here, *GROUND))] == []
    # Jaxprs are read by their fields; only to compile a node takes JAX.
    jax = [] if path.name == "compiled.py" else ["jax", "jaxlib"]
    assert reaches(path, *jax, "bokeh", "IPython", "pathways_widgets") == []


@pytest.mark.parametrize("path", files("backends"), ids=lambda p: p.name)
def test_backends_know_neither_client_nor_notebook(path: Path) -> None:
    allowed = ("backends", "controller", "program", "cost", "trace", "progress")
    ours = reaches(path, "pathways_nb", "pathways_widgets")
    assert [n for n in ours if not n.startswith((*GROUND, *(f"pathways_nb.{a}" for a in allowed)))] == []
    assert reaches(path, "IPython", "bokeh") == []


@pytest.mark.parametrize("path", sorted((ROOT / "widgets").rglob("*.py")), ids=lambda p: p.name)
def test_views_draw_from_records_and_graphs_alone(path: Path) -> None:
    allowed = (
        *GROUND,
        "pathways_nb.trace",
        "pathways_nb.plan.graph",
        "pathways_nb.plan.source_lines",
        "pathways_nb.plan.virtual_slice",
        "pathways_nb.plan.plan",
    )
    assert [n for n in reaches(path, "pathways_nb") if not n.startswith(allowed)] == []
    assert reaches(path, "jax") == []


def test_widgets_are_imported_only_when_something_is_shown(fresh_python: Callable[..., Any]) -> None:
    done = fresh_python("""
        import sys, pathways_nb
        print(sorted({"bokeh", "pathways_widgets", "ray", "ipywidgets", "optax"} & set(sys.modules)))
    """)
    assert (done.stdout, done.returncode) == ("[]\n", 0), done.stderr


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
    assert public == set(pw.__all__)


@pytest.mark.parametrize("name", pw.__all__)
def test_every_public_name_is_documented(name: str) -> None:
    assert inspect.getdoc(getattr(pw, name)), name


@pytest.mark.parametrize(
    "name", ["Chip", "Computation", "Controller", "Future", "Graph", "Network", "Program", "Run", "VirtualSlice"]
)
def test_every_public_method_is_documented(name: str) -> None:
    cls = getattr(pw, name)
    own = {k: v for k, v in vars(cls).items() if not k.startswith("_") and (callable(v) or isinstance(v, property))}
    assert [method for method, value in own.items() if not inspect.getdoc(value)] == []


@pytest.mark.parametrize("path", sorted((ROOT / "tests").rglob("*.py")), ids=lambda path: path.name)
def test_no_test_sleeps_reads_a_clock_or_is_skipped(path: Path) -> None:
    """What a test waits for is a condition (see ``tests/waiting.py``), and it runs everywhere.

    Without a Chromium a person gets the other tests; what is stamped on the machine's clock is compared with it.
    """
    allowed = {
        "__main__.py": {"time.monotonic"},  # for how long to try programs
        "browser.py": {"pytest.skip"},
        "fuzz.py": {"time.monotonic"},
        "test_fork.py": {"pytest.mark.skipif"},  # of a system without fork
        "test_profile.py": {"time.perf_counter"},
        "test_record.py": {"time.perf_counter"},
        "trying.py": {"time.monotonic"},
        "test_turns.py": {"time.sleep"},  # in a thread that is to be known as asleep
        "waiting.py": {"time.monotonic", "time.sleep"},
    }
    used = {ast.unparse(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)}
    clocks = {f"time.{name}" for name in ("sleep", "monotonic", "perf_counter", "time")}
    skips = {f"pytest.{name}" for name in ("skip", "importorskip", "mark.skip", "mark.skipif", "mark.xfail")}
    assert used & (clocks | skips) <= allowed.get(path.name, set())
    assert not any(name.endswith(".wait_for_timeout") for name in used)


def test_no_argument_is_called_slice() -> None:
    """Devices are always ``on=``; token slices always ``token_slices=`` (API.md)."""
    for name in pw.__all__:
        value = getattr(pw, name)
        if inspect.isfunction(value):
            assert not {"slice", "slices"} & set(inspect.signature(value).parameters), name
