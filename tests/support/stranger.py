"""Another user of this machine: a program that gives up this user's rights before it does anything."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping

NOBODY = 65534
CAN_BE_ANOTHER = os.getuid() == 0
"""Whether this process can become another user; where it cannot, tests look at modes and addresses only."""
_BECOME = "import os, socket\nos.setgroups([]); os.setgid({nobody}); os.setuid({nobody})\n"


def said_by_stranger(program: str, *args: str, before: str = "", environment: Mapping[str, str] | None = None) -> str:
    """Return the standard output of a program that another user runs.

    Args:
        program: its text.
        *args: its arguments, ``sys.argv[1:]``.
        before: what it imports first: this Python may lie where another user cannot read.
        environment: of the process; without it, this one's.
    """
    text = f"import sys\n{before}\n{_BECOME.format(nobody=NOBODY)}{program}"
    asked = subprocess.run(
        [sys.executable, "-c", text, *args],
        capture_output=True, text=True, timeout=120, env=environment, check=False,
    )  # fmt: skip
    assert asked.returncode == 0, asked.stderr
    return asked.stdout


TRY = """
def tried(work):
    try:
        print("got", work())
    except OSError as error:
        print(type(error).__name__)
"""
"""A function for such a program: it prints the name of the error that a piece of work ends with."""
