"""The wheel beside kernels of other ages: what hosted services and hubs run stays as it is, and the quickstart runs on it."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import nbformat
import pytest

from tests.conftest import ROOT
from tests.support.environments import bare, behind, outside, pip, said
from tests.support.waiting import LIMIT, until

pytestmark = pytest.mark.slow
KERNELS = {
    "hosted services": {
        "ipykernel": "6.17.1", "ipython": "7.34.0", "jupyter_client": "7.4.9",
        "tornado": "6.4.2", "pyzmq": "26.2.1", "traitlets": "5.7.1",
    },
    "hubs": {
        "ipykernel": "6.29.5", "ipython": "8.30.0", "jupyter_client": "8.6.3",
        "tornado": "6.4.2", "pyzmq": "26.2.1", "traitlets": "5.14.3",
    },
}  # fmt: skip
"""Versions in which an environment must stay as it is."""
FIGURES = 5
"""Figures of the quickstart."""


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The wheel of this project."""
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-deps", "--wheel-dir", folder, ROOT)
    (made,) = folder.glob("*.whl")
    return made


@pytest.mark.parametrize("name", KERNELS)
def test_installing_changes_no_kernel_and_the_quickstart_runs_on_it(name: str, wheel: Path, tmp_path: Path) -> None:
    kernel = KERNELS[name]
    python = bare(tmp_path / "venv", *(f"{package}=={version}" for package, version in kernel.items()))
    pip("--python", python, "install", "--dry-run", "--report", tmp_path / "report.json", wheel)
    report = json.loads((tmp_path / "report.json").read_text())
    changed = {one["metadata"]["name"].lower().replace("-", "_") for one in report["install"]}
    assert "pathways_nb" in changed
    assert not changed & set(kernel), "pip would replace what the kernel runs on"

    behind(python)
    versions = "from importlib.metadata import version; import sys; print(*map(version, sys.argv[1:]))"
    assert said(python, "-c", versions, *kernel).split() == list(kernel.values())
    notebook = ROOT / "notebooks" / "01_quickstart.ipynb"
    said(python, "-m", "pathways_nb", "demo", "--notebook", notebook, "--out", tmp_path)
    outputs = outputs_of(tmp_path / notebook.name)
    assert [one.output_type for one in outputs if one.output_type == "error"] == []
    for kind in ("application/vnd.jupyter.widget-view+json", "image/png"):
        assert sum(kind in one.get("data", {}) for one in outputs) == FIGURES, kind
    words = [text for one in outputs if "while it runs" in (text := one.get("data", {}).get("text/plain", ""))]
    assert len(words) == 1, "what an old kernel lacks is said once"
    assert f"ipykernel {kernel['ipykernel']}:" in words[0]


def outputs_of(notebook: Path) -> list[Any]:
    """Return all outputs of an executed notebook."""
    return [one for cell in nbformat.read(notebook, as_version=4).cells for one in cell.get("outputs", [])]


def test_the_wheel_brings_the_course_and_opens_it(wheel: Path, tmp_path: Path) -> None:
    python = bare(tmp_path / "venv", "--no-deps", wheel)
    behind(python, sources=())
    folder, log = tmp_path / "mine", tmp_path / "log"
    folder.mkdir()
    (folder / "02_dispatch.ipynb").write_text("my own")
    browser, seen = tmp_path / "browser", tmp_path / "seen"
    browser.write_text(f'#!/bin/sh\ncp "${{1#file://}}" {seen}.part && mv {seen}.part {seen}\n')
    browser.chmod(0o755)
    command = [str(python), "-m", "pathways_nb", "lab", str(folder), "--ServerApp.port_retries=50"]
    environment = outside() | {"JUPYTER_RUNTIME_DIR": str(tmp_path / "runtime"), "BROWSER": f"{browser} %s"}
    with log.open("wb") as output:
        started = subprocess.Popen(command, env=environment, cwd=tmp_path, stdout=output, stderr=output)
    try:
        until(lambda: seen.exists() or started.poll() is not None)
        assert "/lab/tree/01_quickstart.ipynb" in seen.read_text(), log.read_text()
    finally:
        started.terminate()
        started.wait(LIMIT)
    assert "1 were there and stay" in log.read_text()
    assert (folder / "02_dispatch.ipynb").read_text() == "my own"
    course = {path.relative_to(ROOT / "notebooks") for path in (ROOT / "notebooks").rglob("*") if path.is_file()}
    assert {path.relative_to(folder) for path in folder.rglob("*") if path.is_file()} >= course
