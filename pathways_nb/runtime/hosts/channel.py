"""Connections between the controller and its hosts, and between hosts: messages that arrive whole and in order.

Ray starts, places, watches and ends the processes. But a call of Ray's takes 0.7 ms there and back, and a socket 0.03.
So messages, reports and small values go by sockets. Whoever connects must prove that it knows a key, which only Ray's
own calls tell, before anything else of it is read; nothing is encrypted, as nothing of Ray's is.
"""

from __future__ import annotations

import contextlib
import operator
import os
import queue
import secrets
import select
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing import AuthenticationError
from multiprocessing.connection import Connection, answer_challenge, deliver_challenge

from pathways_nb.runtime.entries import at_once

_LENGTH = struct.Struct("!Q")
_KEY = 32
"""Bytes of a key."""
_PATIENCE = 10.0
"""Seconds to connect, and to prove that the key is known."""
_BACKLOG = 128
"""Processes that may connect at the same moment."""
_TIME = struct.Struct("@ll")
"""Seconds and microseconds, as the system takes them."""


class Channel:
    """A connection to another process, each side of which knows the other.

    Args:
        sock: the connected socket.
    """

    def __init__(self, sock: socket.socket):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        self._sock = sock
        self._reading, self._writing = threading.Lock(), threading.Lock()
        self._unsent: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._rest = memoryview(b"")
        """What is left of a message of which a part is sent."""
        self._bell: queue.SimpleQueue[bool] = queue.SimpleQueue()
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)
        threading.Thread(target=self._write, name="pathways-writer", daemon=True).start()

    def send(self, message: bytes) -> None:
        """Send a message; this never waits, and does nothing if the other side is gone."""
        if threading.current_thread() is threading.main_thread():
            # An interrupt may stop this thread anywhere, and half a message must not stay: the writer sends it.
            at_once(map(operator.call, (self._unsent.put, self._bell.put), (message, True)))  # type: ignore[arg-type]
            return
        self._unsent.put(message)
        if not self._rest and not self._pump(socket.MSG_DONTWAIT):
            self._bell.put(True)  # the other side takes it slowly, or not at all

    def receive(self, timeout: float | None = None) -> bytes | None:
        """Wait for a message.

        Args:
            timeout: seconds to wait at most until it begins to arrive.

        Returns:
            The message; ``None`` if none began in time.

        Raises:
            EOFError: the other side is gone, or this one is closed.
        """
        with self._reading:
            try:
                if timeout is not None and self._sock.fileno() >= 0 and not self._poll.poll(1e3 * timeout):
                    return None
                (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
                return self._read(length)
            except OSError as error:
                raise EOFError(str(error)) from None

    def close(self) -> None:
        """End the connection; whoever waits for a message gets ``EOFError``."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)  # first: it ends waits in the system, where closing does not
        self._bell.put(False)
        with self._reading:
            self._sock.close()

    def _read(self, length: int) -> bytes:
        data = self._sock.recv(length, socket.MSG_WAITALL) if length else b""
        parts, missing = [data], length - len(data)
        while missing and data:  # the system gives large ones in parts
            data = self._sock.recv(missing, socket.MSG_WAITALL)
            parts.append(data)
            missing -= len(data)
        if missing:
            raise EOFError("the other side is gone")
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _pump(self, flags: int) -> bool:
        """Send what is unsent; return whether it all went, or goes in another thread."""
        while self._rest or not self._unsent.empty():
            if not self._writing.acquire(blocking=False):
                return True  # who has it looks again when it has given it back
            try:
                while self._rest or not self._unsent.empty():
                    if not self._rest:
                        message = self._unsent.get_nowait()
                        self._rest = memoryview(_LENGTH.pack(len(message)) + message)
                    self._rest = self._rest[self._sock.send(self._rest, flags) :]
            except BlockingIOError:
                return False
            except OSError:  # the other side is gone, which the reader notices
                self._rest = memoryview(b"")
            finally:
                self._writing.release()
        return True

    def _write(self) -> None:
        """Send what another thread could not, or must not."""
        while self._bell.get():
            self._pump(0)


@dataclass(frozen=True, slots=True)
class Door:
    """Where a process takes connections, and the key that it asks for."""

    address: tuple[str, int]
    key: bytes = field(repr=False)

    @classmethod
    def opened(cls, host: str, serve: Callable[[Channel], None]) -> Door:
        """Take connections from now on.

        Args:
            host: the address of this machine at which to listen.
            serve: is given each connection, in a thread of its own.

        Returns:
            What others need to connect.
        """
        server, key = socket.create_server((host, 0), backlog=_BACKLOG), secrets.token_bytes(_KEY)
        threading.Thread(target=_accept, args=(server, key, serve), name="pathways-door", daemon=True).start()
        return cls(server.getsockname()[:2], key)

    def enter(self) -> Channel:
        """Return a connection to the process behind this door.

        Raises:
            OSError: nothing answers there.
        """
        sock = socket.create_connection(self.address, _PATIENCE)
        return _known(sock, lambda connection: _prove(connection, self.key))


def _accept(server: socket.socket, key: bytes, serve: Callable[[Channel], None]) -> None:
    while True:
        sock, _ = server.accept()
        # In a thread of its own: one who says nothing must not keep others out.
        threading.Thread(target=_let_in, args=(sock, key, serve), name="pathways-channel", daemon=True).start()


def _let_in(sock: socket.socket, key: bytes, serve: Callable[[Channel], None]) -> None:
    with contextlib.suppress(OSError):  # it was a stranger
        serve(_known(sock, lambda connection: _ask(connection, key)))


def _prove(connection: Connection, key: bytes) -> None:
    answer_challenge(connection, key)
    deliver_challenge(connection, key)


def _ask(connection: Connection, key: bytes) -> None:
    deliver_challenge(connection, key)
    answer_challenge(connection, key)


def _known(sock: socket.socket, introduced: Callable[[Connection], None]) -> Channel:
    """Return a channel when both sides have proved that they know the key.

    Raises:
        OSError: the other side does not know it, or says nothing.
    """
    try:
        _limit(sock, _PATIENCE)
        with Connection(os.dup(sock.fileno())) as connection:
            introduced(connection)
        _limit(sock, 0.0)
        return Channel(sock)
    except BaseException as error:
        sock.close()
        if isinstance(error, (EOFError, AuthenticationError)):
            raise OSError(f"it does not know the key: {error}") from None
        raise


def _limit(sock: socket.socket, seconds: float) -> None:
    """Have the system end each wait for the other side after some seconds; 0 for never."""
    sock.setblocking(True)
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        sock.setsockopt(socket.SOL_SOCKET, option, _TIME.pack(int(seconds), 0))
