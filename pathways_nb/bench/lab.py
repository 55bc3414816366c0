"""A JupyterLab server for a bench or a test, and the search for a browser.

The server has its own port, token and folder. Settings, workspaces and runtime files are in that folder, so that those
of the user's own JupyterLab are neither used nor changed. News and update checks are off.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import nbformat

ROOT = Path(__file__).resolve().parents[2]
SOURCES = os.pathsep.join(str(ROOT / part) for part in (".", "widgets", "datasets"))
"""``PYTHONPATH`` of kernels."""
_PATIENCE = 300.0
"""Seconds after which a server that does not answer counts as stuck."""


COMMANDS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
"""Names of the browser on ``PATH``."""
_APPLICATIONS = Path("/Applications")


def find_chromium() -> str | None:
    """Return the path of a Chromium or Chrome: ``$CHROMIUM``, one on ``PATH``, an application, or Playwright's own.

    Returns:
        None if there is none. A ``$CHROMIUM`` that does not exist is not replaced by another browser.
    """
    named = os.environ.get("CHROMIUM")
    if named:
        return shutil.which(named)
    on_path = next(filter(None, map(shutil.which, COMMANDS)), None)
    return on_path or next(map(str, _elsewhere()), None)


def _elsewhere() -> Iterator[Path]:
    """Yield browsers that are not on ``PATH``: applications of macOS, and downloads of Playwright."""
    yield from _APPLICATIONS.glob("*Chrom*.app/Contents/MacOS/*Chrom*")
    for cache in (Path.home() / ".cache", Path.home() / "Library/Caches"):
        yield from sorted(cache.glob("ms-playwright/chromium-*/chrome-*/chrome"), reverse=True)


@dataclass
class LabServer:
    """A running server, and the folder of its notebooks.

    Args:
        port: on 127.0.0.1.
        token: for access.
        folder: root of the server's notebooks.
        process: the server itself.
    """

    port: int
    token: str
    folder: Path
    process: subprocess.Popen[bytes]

    def page(self, notebook: str) -> str:
        """Return the address of a notebook, with a fresh workspace."""
        return f"http://127.0.0.1:{self.port}/lab/tree/{notebook}?token={self.token}&reset"

    def request(self, path: str, method: str = "GET") -> bytes:
        """Return the answer of the server's REST interface.

        Args:
            path: such as ``/api/sessions``.
            method: of HTTP.
        """
        url = f"http://127.0.0.1:{self.port}{path}?token={self.token}"
        with urllib.request.urlopen(urllib.request.Request(url, method=method), timeout=_PATIENCE) as answer:
            return bytes(answer.read())

    def write(self, name: str, cells: list[str]) -> None:
        """Write a new notebook with these code cells."""
        kernel = {"kernelspec": {"name": "python3", "display_name": "Python 3", "language": "python"}}
        made = [nbformat.v4.new_code_cell(source) for source in cells]
        notebook = nbformat.v4.new_notebook(cells=made, metadata=kernel)
        nbformat.write(notebook, self.folder / name)

    def end_kernels(self) -> None:
        """End every kernel."""
        for session in json.loads(self.request("/api/sessions")):
            self.request(f"/api/sessions/{session['id']}", "DELETE")

    def stop(self) -> None:
        """End every kernel, then the server."""
        self.end_kernels()
        self.process.terminate()
        self.process.wait(_PATIENCE)


def start(folder: Path, notebooks: Path | None = None) -> LabServer:
    """Return a started server that listens.

    Args:
        folder: empty folder for the server's notebooks, settings and runtime files.
        notebooks: folder whose contents are copied for the server; None for none.

    Raises:
        RuntimeError: the server did not start; the end of its log is shown.
    """
    work, settings = folder / "work", folder / "settings" / "@jupyterlab" / "apputils-extension"
    work.mkdir()
    if notebooks is not None:
        shutil.copytree(notebooks, work, ignore=shutil.ignore_patterns(".ipynb_checkpoints"), dirs_exist_ok=True)
    settings.mkdir(parents=True)
    (settings / "notification.jupyterlab-settings").write_text('{"fetchNews": "false", "checkForUpdates": false}')
    token, runtime = secrets.token_hex(8), folder / "runtime"
    command = [
        sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root",
        f"--port={secrets.randbelow(20_000) + 10_000}", "--port-retries=50", "--KernelManager.shutdown_wait_time=1",
        f"--IdentityProvider.token={token}", f"--ServerApp.root_dir={work}",
        f"--LabApp.user_settings_dir={folder / 'settings'}",
        f"--LabApp.workspaces_dir={folder / 'workspaces'}", "--LabApp.expose_app_in_browser=True",
    ]  # fmt: skip
    with (folder / "server.log").open("wb") as log:
        environment = os.environ | {"PYTHONPATH": SOURCES, "JUPYTER_RUNTIME_DIR": str(runtime)}
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log)
    return LabServer(_port_of(process, runtime, folder / "server.log"), token, work, process)


def _port_of(process: subprocess.Popen[bytes], runtime: Path, log: Path) -> int:
    """Return the port on which the server listens, from the file that the server writes.

    The port asked for may be taken by then: ``--port-retries`` lets the server choose another one.

    Args:
        process: the server.
        runtime: folder of the server's runtime files.
        log: output of the server, for the error.

    Raises:
        RuntimeError: the server ended or did not answer in time.
    """
    deadline = time.monotonic() + _PATIENCE
    while process.poll() is None and time.monotonic() < deadline:
        for path in runtime.glob("jpserver-*.json"):
            with contextlib.suppress(ValueError):  # it is still being written
                return int(json.loads(path.read_text())["port"])
        time.sleep(0.05)
    process.kill()
    raise RuntimeError(f"JupyterLab did not start:\n{log.read_text()[-2000:]}")
