"""The key with which Ray's processes know each other on clusters that are made here.

Ray takes a token from its environment variables, or from ``~/.ray/auth_token``, which it makes readable for everybody.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pathways_nb.runtime.cluster.private_folder import check_file, folder_of_user, token_of_user

_MODE, _TOKEN, _PATH = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"


def use(say: Callable[[str], object]) -> None:
    """Have Ray use this user's own token for clusters on this machine, unless its environment names another.

    Args:
        say: shows a line if there will be none.

    Raises:
        NotPrivateError: another user may read the token.
    """
    if os.environ.get(_MODE, "token").lower() != "token":
        say(
            f"{_MODE}={os.environ[_MODE]}: every user of this machine can run code as you on the clusters that you "
            f"make. Unset {_MODE} and start this kernel again to keep them out."
        )
        return
    if _TOKEN not in os.environ:
        if _PATH in os.environ:
            check_file(Path(os.environ[_PATH]).expanduser())
        else:
            os.environ[_PATH] = str(token_of_user(folder_of_user()))
    os.environ[_MODE] = "token"
    if (ray := sys.modules.get("ray")) is not None and not ray.is_initialized() and not _read_again():
        say(
            "this version of Ray reads its token only when it is imported, and it was imported before pw.attach: other "
            "users of this machine may reach this cluster. Restart the kernel and attach before you import Ray."
        )


def _read_again() -> bool:
    """Have Ray read its environment again; return whether it could."""
    try:
        internals: Any = importlib.import_module("ray._raylet")
        internals.Config.initialize("")
        internals.AuthenticationTokenLoader.instance().reset_cache()
        expected = os.environ.get(_TOKEN) or Path(os.environ[_PATH]).expanduser().read_text().strip()
        return bool(internals.AuthenticationTokenLoader.instance().get_raw_token() == expected)
    except Exception:  # they are private: what they raise may change
        return False
