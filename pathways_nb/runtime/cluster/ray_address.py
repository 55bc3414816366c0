"""The address of a running Ray cluster, as ``pw.attach`` is given it."""

from __future__ import annotations

import re
import socket
from typing import Any

from pathways_nb.errors import PlaceError, UsageError
from pathways_nb.util.json_text import shortened

_ADDRESS = re.compile(r"(?:ray://)?([\w.-]+|\[[\da-fA-F:.]+\]):(\d{1,5})", re.ASCII)
"""``host:port``, with a number in brackets as a host of IPv6."""
_REACH = 5.0
"""Seconds to wait for an address: Ray itself would end this process after a minute."""


def check_address(address: Any) -> None:
    """Check that an address has the form ``host:port``.

    Raises:
        UsageError: it has another, or the port is none.
    """
    match = _ADDRESS.fullmatch(address) if isinstance(address, str) else None
    if match is None or not 1 <= int(match[2]) <= 65535:
        why = "it is no text" if not isinstance(address, str) else (
            "ports are 1 to 65535" if match is not None else "that is not host:port"
        )  # fmt: skip
        raise UsageError(
            f"attach('ray', address={shortened(address)}): {why}. Give the address of a running Ray cluster, such as "
            f'address="10.0.0.1:6379", or leave it out to make one on this machine.'
        )


def check_reachable(address: str) -> None:
    """Check that something answers at an address.

    Raises:
        PlaceError: nothing does.
    """
    match = _ADDRESS.fullmatch(address)
    assert match is not None, "checked before"
    try:
        socket.create_connection((match[1].strip("[]"), int(match[2])), timeout=_REACH).close()
    except OSError as error:
        raise PlaceError(
            f"attach('ray', address={address!r}): nothing answers there ({error}). Give host:port of a running Ray "
            f"cluster, or leave address out to make one on this machine."
        ) from None
