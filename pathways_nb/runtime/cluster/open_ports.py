"""Which ports of a cluster on this machine other machines can reach: none, unless Ray or JAX has changed its names."""

from __future__ import annotations

from ipaddress import ip_address

import psutil

_SERVERS = ("gcs_server", "raylet")
"""Ray's programs that a process starts; all others, hosts among them, are started by these."""


def reachable(root: int) -> list[str]:
    """Return each port that is not on loopback, of the servers of Ray that a process has started, and of their hosts.

    Returns:
        Of each port the program, its process, and where it listens.
    """
    try:
        servers = [one for one in psutil.Process(root).children() if one.name() in _SERVERS]
        started = [*servers, *(one for server in servers for one in server.children(recursive=True))]
    except psutil.Error:  # it has ended
        return []
    return sorted(port for process in started for port in _of(process))


def _of(process: psutil.Process) -> list[str]:
    try:
        sockets = process.net_connections("tcp")
        listening = [one.laddr for one in sockets if one.status == psutil.CONN_LISTEN]
        name = process.name()
    except psutil.Error:  # it has ended
        return []
    return [f"{name} (process {process.pid}) on {ip}:{port}" for ip, port in listening if not _is_loopback(ip)]


def _is_loopback(ip: str) -> bool:
    found = ip_address(ip)
    return (getattr(found, "ipv4_mapped", None) or found).is_loopback
