"""Where the processes of an island meet: JAX's coordination service, and gloo's connections of CPU devices.

Neither asks who calls. So on one machine the service has a socket in a folder of this user in place of a port, and gloo
stays on loopback. Over several machines both have ports, which a network of one's own must keep from others.
"""

from __future__ import annotations

import contextlib
import importlib
import shutil
import socket
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from unittest.mock import patch

_UNIX = "unix:"
_LONG = 80
"""Bytes of a path in which a socket has no place: its own may have 107."""


def new_meeting(address: str, on_one_machine: bool) -> str:
    """Return where the processes of an island can meet.

    Args:
        address: of this machine.
        on_one_machine: whether all of them are here.
    """
    if on_one_machine:
        usual = tempfile.gettempdir()
        return f"{_UNIX}{tempfile.mkdtemp(prefix='pathways_nb-', dir='/tmp' if len(usual) > _LONG else usual)}/meeting"
    with socket.socket() as probe:
        probe.bind(("", 0))
        return f"{address}:{probe.getsockname()[1]}"


@contextlib.contextmanager
def joined(meeting: str, processes: int, number: int, heartbeat: int) -> Iterator[None]:
    """Connect this process with the others of its island; in the block JAX makes its devices, which needs all.

    Args:
        meeting: as ``new_meeting`` returned it.
        processes: how many meet.
        number: of this process.
        heartbeat: seconds after which JAX's own service takes a process that does not answer for dead.

    Yields:
        Nothing.
    """
    import jax

    here = meeting.startswith(_UNIX)
    jax.distributed.initialize(
        meeting, processes, number, coordinator_bind_address=meeting if here else _bindable(meeting),
        heartbeat_timeout_seconds=heartbeat,
    )  # fmt: skip
    with _gloo_on_loopback() if here else contextlib.nullcontext():
        yield
    if number == 0:
        close(meeting)


def close(meeting: str) -> None:
    """Let nobody else come to a meeting on this machine; those who have met stay connected without its name."""
    if meeting.startswith(_UNIX):
        shutil.rmtree(Path(meeting.removeprefix(_UNIX)).parent, ignore_errors=True)


def _bindable(meeting: str) -> str:
    """Return the address to listen at: no other than the meeting's, unless that is another machine's to translate."""
    host, port = meeting.rsplit(":", 1)
    try:
        with socket.socket() as probe:
            probe.bind((host, 0))
    except OSError:
        return f"[::]:{port}"
    return meeting


@contextlib.contextmanager
def _gloo_on_loopback() -> Iterator[None]:
    """Have gloo listen on loopback in this block, and not at the address that this machine's name has.

    Yields:
        Nothing.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, AttributeError):  # it is private; see ``open_ports`` if it is gone
            library = importlib.import_module("jax._src.xla_bridge")._jax
            make = partial(library.make_gloo_tcp_collectives, hostname="127.0.0.1")
            stack.enter_context(patch.object(library, "make_gloo_tcp_collectives", make))
        yield
