"""Asks Ray's own servers, the GCS and the raylet, whether they live.

A gRPC server answers the greeting of HTTP/2 before it asks for any token. So a plain socket tells a server that is gone
(nothing listens) from one that stands still (nothing is said), without Ray, whose own calls wait without end for both.
It imports nothing of the package, so that ``keep_cluster`` can import it by path.
"""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Any

_GREETING = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes((0, 0, 0, 4, 0, 0, 0, 0, 0))
"""The preface of HTTP/2, and an empty frame of settings."""
_EVERY = 1.0
"""Seconds between two questions."""
_GONE = 3
"""Questions in a row that nothing listens to until a server is gone: one may come while it starts anew."""
_SAYS = 2.0
"""Seconds to wait for an answer."""


def asked(address: str) -> bool:
    """Return whether a server answers.

    Args:
        address: ``host:port``.

    Raises:
        ConnectionError: nothing listens there.
    """
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=_SAYS) as connection:
            with contextlib.suppress(ConnectionError):  # it has closed the connection, which is an answer
                connection.sendall(_GREETING)
                connection.recv(1)
            return True
    except TimeoutError:
        return False
    except ConnectionError:
        raise
    except OSError as error:  # the machine, or the way to it, is gone
        raise ConnectionError(str(error)) from None


def servers_of(ray: Any) -> dict[str, str]:
    """Return the addresses of the servers that this process needs: the GCS, and the raylet of its node."""
    here, servers = ray.get_runtime_context().get_node_id(), {"GCS": ray.get_runtime_context().gcs_address}
    for node in ray.nodes():
        if node["NodeID"] == here:
            servers["raylet"] = f"{node['NodeManagerAddress']}:{node['NodeManagerPort']}"
    return servers


class Health:
    """What is known of some servers, from the answers to questions.

    Time is counted in questions and not by a clock: a process that slept itself must not take others for dead.

    Args:
        servers: the address of each, by its name.
        ask: returns whether a server answers.
    """

    def __init__(self, servers: Mapping[str, str], ask: Callable[[str], bool] = asked):
        self.servers, self._ask = dict(servers), ask
        self._refused = dict.fromkeys(servers, 0)
        self._silent = dict.fromkeys(servers, 0.0)
        """Seconds of silence."""

    def look(self, unresponsive_after: float) -> str:
        """Ask each server once more.

        Args:
            unresponsive_after: seconds of silence after which a server counts as gone.

        Returns:
            Why they are no longer there; empty while they are.
        """
        silent = set[str]()
        for name, address in self.servers.items():
            try:
                answers = self._ask(address)
            except ConnectionError as error:
                self._refused[name] += 1
                if self._refused[name] >= _GONE:
                    return f"its {name} at {address} is gone ({error})"
                continue
            self._refused[name] = 0
            silent.update(() if answers else (name,))
        for name, address in self.servers.items():
            # Each of those that are silent takes as long to be asked as it is waited for.
            lasts = self._silent[name] + _EVERY + _SAYS * len(silent)
            self._silent[name] = lasts if name in silent else 0.0
            if self._silent[name] >= unresponsive_after:
                return f"its {name} at {address} has not answered for {unresponsive_after:g} s"
        return ""

    def is_well(self) -> bool:
        """Return whether all servers answer now."""
        try:
            return all(map(self._ask, self.servers.values()))
        except ConnectionError:
            return False


class Watch:
    """A thread that watches servers until one is gone.

    Args:
        servers: the address of each, by its name.
        on_lost: called in that thread with the reason.
    """

    def __init__(self, servers: Mapping[str, str], on_lost: Callable[[str], None]):
        self.unresponsive_after = 30.0
        """Seconds of silence after which a server counts as gone."""
        self._health, self._on_lost = Health(servers), on_lost
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="pathways-probe", daemon=True).start()

    def is_well(self) -> bool:
        """Return whether all servers answer now."""
        return self._health.is_well()

    def end(self) -> None:
        """Watch no more."""
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(_EVERY):
            why = self._health.look(self.unresponsive_after)
            if why and not self._ended.is_set():
                self._on_lost(why)
                return
