"""This process's connection to a Ray cluster: an existing one by address, or one of its own on loopback.

Ray is an optional extra. One process can be connected to one cluster at a time; a connection that a user made with
``ray.init`` is used and left as it is.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib
import importlib.util
import os
import socket
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from functools import cache
from typing import Any

from pathways_nb.errors import PlaceError, UsageError
from pathways_nb.runtime.cluster import kept_cluster, lean_ray, open_ports, ray_token
from pathways_nb.runtime.cluster.gate import Gate
from pathways_nb.runtime.cluster.host_island import wait
from pathways_nb.runtime.cluster.private_folder import NotPrivateError, SessionFolder, new_session_folder
from pathways_nb.runtime.cluster.probe import Watch, servers_of
from pathways_nb.runtime.cluster.ray_address import check_reachable
from pathways_nb.runtime.cluster.reaper import Reaper, marked
from pathways_nb.util import forks
from pathways_nb.util.progress import tell_reader

NAMESPACE = "pathways_nb"
_LEAVE, _SHUTDOWN = 5.0, 20.0
"""Seconds for threads to come out of Ray, and for Ray to disconnect."""


class Connection:
    """A connection, used by any number of controllers.

    Args:
        ray: Ray's module.
        address: as given to ``pw.attach``; ``None`` for a cluster made here.
        own: whether it is to be ended with the last controller.
        shared: whether the cluster is this user's shared one.
    """

    def __init__(self, ray: Any, address: str | None, own: bool, shared: bool = False):
        self.ray, self.address, self.own, self.shared = ray, address, own, shared
        self.lifeline: socket.socket | None = None
        self.folder: SessionFolder | None = None
        self.reaper: Reaper | None = None
        self.users = 0
        self.gate = Gate()
        """In front of Ray, for all that uses this connection."""
        self.lost = ""
        """Why the cluster is gone."""
        self.on_lost: dict[object, Callable[[str], None]] = {}
        """By user, what is called when the cluster is gone."""
        self.watch: Watch | None = None
        self.ending = threading.Lock()
        self.ended = threading.Event()
        """Set when this process is disconnected."""

    def __str__(self) -> str:
        return self.address or ("this user's shared cluster" if self.shared else "a cluster of its own")

    def begin_watch(self) -> None:
        """Watch the servers of the cluster, which Ray itself would wait for, and then end this process."""
        self.watch = Watch(servers_of(self.ray), self.lose)

    def notice_after(self, seconds: float | None) -> None:
        """Take the cluster for gone when one of its servers was silent for some seconds."""
        if self.watch is not None and seconds is not None:
            self.watch.unresponsive_after = seconds

    def lose(self, why: str) -> None:
        """Fail everything that needs the cluster, and disconnect this process before Ray ends it."""
        again = "Attach again: pw.attach('ray', …)."
        if not self.own:
            again = f"You connected this kernel: call ray.shutdown() within a minute, else Ray ends it. {again}"
        self.lost = f"the Ray cluster ({self}) is lost: {why}. {again}"
        tell_reader(self.lost)
        try:
            for told in list(self.on_lost.values()):
                with contextlib.suppress(Exception):  # one controller's error must not keep Ray from being left
                    told(self.lost)
        finally:
            self.gate.close(self.lost)
            if self.own:
                _disconnect(self)
            self.ended.set()

    def release(self) -> None:
        """Let go of it; the last user's leaving ends the connection, and a cluster made here."""
        self.users -= 1
        if not self.users and self.own:
            _disconnect(self)


_state: dict[str, Connection] = {}
_interrupted: list[tuple[Future[Any], Connection]] = []
"""A connection whose making goes on in its thread after an interrupt, with its end."""
_lock = threading.RLock()


def connect(address: str | None, say: Callable[[str], object] = lambda line: None, shared: bool = False) -> Connection:
    """Return the connection to a cluster.

    Args:
        address: of an existing cluster, such as ``"10.0.0.1:6379"``; ``None`` makes one on loopback.
        say: shows a line of progress.
        shared: without an address, take the cluster of this machine that outlives this process.

    Raises:
        UsageError: Ray is not installed, or this process is connected to another cluster.
        PlaceError: nothing answers at the address, Ray did not start, or this user's folder is open to others.
    """
    try:
        return _connected(address, say, shared)
    except NotPrivateError as error:
        raise PlaceError(f"attach('ray'): {error}") from None


def _connected(address: str | None, say: Callable[[str], object], shared: bool) -> Connection:
    # Ray's import and the start of a cluster take seconds each: they go on side by side.
    _prepare(address, say)
    finding = _begin(kept_cluster.find_or_start, say) if shared and address is None and _is_first() else None
    ray = _ray()
    with _lock:
        while _interrupted:
            making, made = _interrupted[-1]
            with contextlib.suppress(Exception):  # the attach that was interrupted is not this one
                wait(making)
            _interrupted.pop()
            if ray.is_initialized():
                _state["connection"] = made
        known = _state.get("connection")
        if known is not None and known.lost:
            _check_gone(known)
            known = None
        if known is not None and not ray.is_initialized():  # somebody called ray.shutdown()
            _disconnect(known)
            known = None
        if known is None and ray.is_initialized():
            known = _state["connection"] = Connection(ray, ray.get_runtime_context().gcs_address, own=False)
        if known is not None:
            if not _is_meant(known, address, shared):
                raise UsageError(
                    f"attach('ray', address={address!r}): this process is connected to {known}, and Ray allows one "
                    f"cluster at a time. Attach other devices first, pw.attach('cpu'), which ends that connection."
                )
        else:
            if address is not None:
                check_reachable(address)
            made = Connection(ray, address, own=True, shared=shared and address is None)
            where = address
            if made.shared:
                where, made.lifeline = wait(finding) if finding else kept_cluster.find_or_start(say)
            say("starting Ray …" if where is None else f"connecting to the Ray cluster at {where} …")
            _make(ray, where, made)
            known = _state["connection"] = made
        if known.watch is None:
            known.begin_watch()
        known.users += 1
        return known


def tell_open_ports(connection: Connection, say: Callable[[str], object]) -> None:
    """Say which ports of a cluster that was made here other machines can reach, if there are any."""
    made_here = connection.own and connection.address is None
    root = kept_cluster.keeper() if connection.shared else os.getpid()
    if made_here and root is not None and (found := open_ports.reachable(root)):
        say(
            f"other machines can reach this cluster: {'; '.join(found)}. This version of Ray or JAX is not kept on "
            f"loopback. Its token keeps others from running code; close these ports in a firewall."
        )


def _is_meant(known: Connection, address: str | None, shared: bool) -> bool:
    """Return whether a connection is to the cluster that was asked for: without address, the user's own, too."""
    if not known.own and address is None:
        return True
    return (known.address, known.shared) == (address, shared and address is None)


def _is_first() -> bool:
    """Return whether this process has not imported Ray yet, and can."""
    return "ray" not in sys.modules and importlib.util.find_spec("ray") is not None


def _begin(work: Callable[..., Any], *args: Any, lasting: bool = False) -> Future[Any]:
    """Begin ``work`` in a thread of its own, which lives as long as this process if it is ``lasting``."""
    found: Future[Any] = Future()

    def do() -> None:
        try:
            found.set_result(work(*args))
        except BaseException as error:
            found.set_exception(error)
        if lasting:
            threading.Event().wait()

    threading.Thread(target=do, name="pathways-ray", daemon=True).start()
    return found


def _prepare(address: str | None, say: Callable[[str], object]) -> None:
    """Set what Ray reads when it is imported; a cluster that runs already may know no token, or another."""
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")  # leave CUDA_VISIBLE_DEVICES of CPU hosts alone
    os.environ.setdefault("RAY_DEDUP_LOGS", "0")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    if address is None:
        ray_token.use(say)


def _ray() -> Any:
    try:
        with _quiet_forks():
            found = wait(_begin(lean_ray.imported))  # aside: an interrupt would leave half of Ray imported
    except ImportError:
        get = 'pip install "pathways_nb[cluster]"'
        raise UsageError(f"attach('ray') needs Ray, which is not installed here. Get it: {get}.") from None
    _disconnected_at_exit()
    _leave_out_deaths()
    return found


@contextlib.contextmanager
def _quiet_forks() -> Iterator[None]:
    """Start processes in this block without JAX's warning: each executes another program at once.

    Yields:
        Nothing.
    """
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="os.fork", category=RuntimeWarning)
        yield


def _leave_out_deaths() -> None:
    """Keep Ray from printing a paragraph on a host's death, which the controller tells in a line."""
    try:
        worker: Any = importlib.import_module("ray._private.worker")
        show = worker.print_to_stdstream
    except (ImportError, AttributeError):  # it is private: where it is missing, the paragraph is printed
        return
    if getattr(show, "leaves_out_deaths", False):
        return

    def shown(data: dict[str, Any], *args: Any, **options: Any) -> None:
        lines = [line for line in data.get("lines", ()) if not str(line).startswith("A worker died")]
        if lines:
            show({**data, "lines": lines}, *args, **options)

    shown.leaves_out_deaths = True  # type: ignore[attr-defined]
    worker.print_to_stdstream = shown


def _init(ray: Any, address: str | None, made: Connection) -> None:
    if made.shared and address is not None:
        return lean_ray.join(ray, address, namespace=NAMESPACE)
    if address is not None:
        return ray.init(address=address, namespace=NAMESPACE, log_to_driver=False, logging_level="error")
    made.folder = new_session_folder()
    try:
        with _quiet_forks(), marked() as made.reaper:
            lean_ray.start(ray, made.folder.path, namespace=NAMESPACE)
        made.reaper.removes(str(made.folder.path))
        made.folder.check()
    except BaseException:
        ray.shutdown()
        if made.reaper is not None:
            made.reaper.end()
        made.folder.remove()
        raise


def _make(ray: Any, address: str | None, made: Connection) -> None:
    """Connect this process in a lasting thread: the system ends Ray's processes with the thread that started them."""
    making = _begin(_init, ray, address, made, lasting=True)
    try:
        wait(making)
    except BaseException as error:
        if not making.done() or making.exception() is not error:
            _interrupted.append((making, made))
            raise
        raise PlaceError(f"Ray did not start: {type(error).__name__}: {error}") from error


@cache
def _disconnected_at_exit() -> None:
    """Have this process disconnected at exit; called when Ray is imported, whose own end would wait without end."""
    atexit.register(_at_exit)


def _at_exit() -> None:
    if not forks.is_child() and (known := _state.get("connection")) is not None and known.own:
        _disconnect(known)


def _disconnect(connection: Connection) -> None:
    """End a connection, within some seconds also if the cluster stands still."""
    if not connection.ending.acquire(blocking=False):  # for good: it is ended once
        return
    connection.gate.close(connection.lost or "this kernel has let go of the Ray cluster")
    well = not connection.lost and connection.watch is not None and connection.watch.is_well()
    if connection.watch is not None:
        connection.watch.end()
    if not well and connection.reaper is not None:
        connection.reaper.end()  # first: Ray would wait for servers that stand still
    if connection.gate.wait_until_empty(_LEAVE) and _shut_down(connection):
        if connection.lifeline is not None:
            connection.lifeline.close()
        if _state.get("connection") is connection:
            del _state["connection"]
        if connection.folder is not None:
            connection.folder.remove()
    else:  # whoever calls Ray now would have it end this process
        connection.lost = connection.lost or f"{connection} does not let go of this kernel."
    connection.ended.set()


def _shut_down(connection: Connection) -> bool:
    """Have Ray disconnect this process, and return whether it did within some seconds."""
    ending = _begin(connection.ray.shutdown)
    for _ in range(2):
        with contextlib.suppress(Exception):  # also whatever Ray raises then
            ending.result(_SHUTDOWN)
        if connection.reaper is not None:  # Ray does not wait for its agents and hosts
            connection.reaper.end()
        if ending.done():
            break
    return ending.done()


def _check_gone(known: Connection) -> None:
    """Wait until this process is disconnected from a cluster that is gone.

    Raises:
        PlaceError: it is not.
    """
    known.ended.wait(2 * _SHUTDOWN + _LEAVE)
    if not known.own and not known.ray.is_initialized():  # its owner has called ray.shutdown()
        _state.pop("connection", None)
    if _state.get("connection") is known:
        done = "Restart this kernel" if known.own else "Call ray.shutdown()"
        raise PlaceError(f"attach('ray'): {known.lost} Ray still holds this process. {done}, and attach again.")
