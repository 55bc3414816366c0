"""The compilers for chips that are not here, installed once a run where they are missing."""

from __future__ import annotations

import fcntl

from pathways_nb.compilers import packages
from tests.conftest import ROOT


def install_if_missing() -> None:
    """Install both compilers; of several test processes one installs, and the others wait for it."""
    lock = ROOT / "build" / "compilers.lock"
    lock.parent.mkdir(exist_ok=True)
    with lock.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        for kind in packages.PACKAGES:
            if not packages.is_installed(kind):
                packages.install(kind)
