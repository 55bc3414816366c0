"""A program that keeps a Ray cluster on this machine for as long as any kernel uses it.

It is run by path, ``python keep_cluster.py FOLDER``, so that it imports nothing of the package. It writes the cluster's
address into the folder when the cluster is up. Each kernel holds a connection to its socket; the system closes it with
the kernel's process, however that ends. When the last one has ended, so does the cluster.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import sys
import threading
import time
from pathlib import Path

_GRACE = 3.0
"""Seconds without kernels after which the cluster ends; a notebook that restarts its kernel finds it again."""
_FIRST = 60.0
"""Seconds for the first kernel to come."""


def main(folder: Path) -> None:
    """Keep a cluster until nobody uses it."""
    lean_ray, private_folder, probe, reaper = map(
        importlib.import_module, ("lean_ray", "private_folder", "probe", "reaper")
    )  # beside this file
    ray = lean_ray.imported()
    session = private_folder.new_session_folder()
    with reaper.marked() as ended_by:
        lean_ray.start(ray, session.path)
    ended_by.removes(str(session.path))
    session.check()
    servers, lost = probe.servers_of(ray), threading.Event()
    address = servers["GCS"]
    probe.Watch(servers, lambda why: lost.set())
    with socket.socket(socket.AF_UNIX) as server:
        path = folder / f"lifeline-{os.getpid()}"
        server.bind(str(path))
        server.listen(64)
        written = folder / f"new-{os.getpid()}"
        written.write_text(json.dumps({"address": address, "lifeline": str(path), "process": os.getpid()}))
        written.replace(folder / "cluster.json")
        try:
            _wait_for_kernels(server, lost)
        finally:
            (folder / "cluster.json").unlink(missing_ok=True)
            path.unlink(missing_ok=True)
            if lost.is_set():  # Ray would wait for servers that stand still
                ended_by.end()
                os._exit(1)
            ray.shutdown()
            ended_by.end()
            session.remove()


def _wait_for_kernels(server: socket.socket, lost: threading.Event) -> None:
    """Return when no kernel is connected any more, or the cluster is lost."""
    connected: set[socket.socket] = set()
    until = [time.monotonic() + _FIRST]

    def hold(connection: socket.socket) -> None:
        with connection:
            try:
                while connection.recv(64):
                    pass
            except OSError:
                pass
        until[0] = time.monotonic() + _GRACE
        connected.discard(connection)

    server.settimeout(0.5)
    while (connected or time.monotonic() < until[0]) and not lost.is_set():
        try:
            connection, _ = server.accept()
        except TimeoutError:
            continue
        connection.settimeout(None)
        connected.add(connection)
        connection.sendall(b"1")
        threading.Thread(target=hold, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
