"""Notices a process of another user at a port that asks nobody who calls: gloo's, and those of JAX's transfer servers.

gloo takes whoever names the next number for the host that it waits for, gives it that host's values and takes its
answers. Both can be kept on loopback, but not from other users of the machine. The system knows whose a connection is,
so each one that comes is looked at, and a foreign one ends the island.
"""

from __future__ import annotations

import contextlib
import os
import socket
import struct
import threading
import time
from collections.abc import Callable, Set
from pathlib import Path

_TABLES = (Path("/proc/net/tcp"), Path("/proc/net/tcp6"))
_DESCRIPTORS = Path("/proc/self/fd")
_TICK = 0.25
"""Seconds between two looks; a connection that waits for its turn has to stay for longer than that."""
_OWNED = {"01", "02", "08"}
"""States of a connection in which the system's table names its owner: established, being made, half closed."""


def watch(before: Set[int], tell: Callable[[str], object]) -> None:
    """Watch the ports of this process, for as long as it lives.

    Args:
        before: ports that it had before, and that ask who calls.
        tell: is called in a thread, with a sentence, when another user's process has connected to one of the others.
    """
    if _DESCRIPTORS.is_dir():
        threading.Thread(target=_watch, args=(before, tell), name="pathways-intruders", daemon=True).start()


def _watch(before: Set[int], tell: Callable[[str], object]) -> None:
    known: set[str] = set()
    while True:
        # The table of the whole machine takes milliseconds; it is read when this process has a new connection.
        if (now := _sockets()) - known and (users := foreign_users(ports := listening() - before)):
            break
        known = now
        time.sleep(_TICK)
    tell(
        f"a process of user {min(users)} connected to its port {' or '.join(map(str, sorted(ports)))}, at which hosts "
        f'trust each other. Among users whom you do not trust, make islands of one host, with transfers="ray"'
    )


def _sockets() -> set[str]:
    """Return the sockets of this process, by their names in the system's table of descriptors."""
    found = set()
    for name in os.listdir(_DESCRIPTORS):
        with contextlib.suppress(OSError):  # it was closed meanwhile
            found.add(os.readlink(_DESCRIPTORS / name))
    return {name for name in found if name.startswith("socket:")}


def listening() -> set[int]:
    """Return the ports at which this process listens; none on a system that has no table of descriptors."""
    found = set()
    for name in os.listdir(_DESCRIPTORS) if _DESCRIPTORS.is_dir() else ():
        with contextlib.suppress(OSError), contextlib.ExitStack() as stack:
            copy = os.dup(int(name))
            stack.callback(os.close, copy)  # also of what is no socket
            one = socket.socket(fileno=copy)
            stack.callback(one.detach)
            inet = one.family in (socket.AF_INET, socket.AF_INET6)
            if inet and one.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
                found.add(one.getsockname()[1])
    return found


def foreign_users(ports: set[int]) -> set[int]:
    """Return the other users but root whose processes are connected to a port of this machine's loopback.

    Args:
        ports: which ports.
    """
    lines = [line.split() for table in _TABLES if table.exists() for line in table.read_text().splitlines()[1:]]
    to_us = [line for line in lines if line[3] in _OWNED and _is_at(line[2], ports)]
    return {int(line[7]) for line in to_us} - {os.getuid(), 0}


def _is_at(address: str, ports: set[int]) -> bool:
    """Return whether an address of the system's table, in hexadecimal, is on loopback at one of the ports."""
    host, port = address.split(":")
    last = struct.pack("=I", int(host[-8:], 16))  # of IPv4, or of IPv4 written as IPv6
    return int(port, 16) in ports and last[0] == 127
