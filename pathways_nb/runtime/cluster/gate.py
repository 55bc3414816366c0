"""A door in front of Ray that can be closed: no thread is inside Ray while this process disconnects.

Ray ends the whole process if a thread calls it, or waits in it, after it was shut down. So every call goes through a
gate, no wait in Ray is longer than a second, and what was asked gets an error from here when no answer will come.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from pathways_nb.runtime.cluster.host_island import HostDied
from pathways_nb.util.waiting import Promise

_LOOK = 0.01
"""Seconds between two looks whether somebody is inside."""


class Gate:
    """Lets threads call Ray until it is closed."""

    def __init__(self) -> None:
        self.closed = ""
        """Why nobody may call Ray any more."""
        self._lock = threading.Lock()
        self._inside = 0
        self._asked: dict[Promise[Any], object] = {}
        """What has no answer yet, with whom it was asked of."""

    @contextmanager
    def passed(self) -> Iterator[None]:
        """Call Ray in this block.

        Yields:
            Nothing.

        Raises:
            HostDied: the gate is closed.
        """
        with self._lock:
            if self.closed:
                raise HostDied(self.closed)
            self._inside += 1
        try:
            yield
        finally:
            with self._lock:
                self._inside -= 1

    def promise(
        self,
        call: Callable[[], Any],
        owner: object,
        translated: Callable[[BaseException], BaseException],
    ) -> Promise[Any]:
        """Call Ray for something.

        Args:
            call: returns a reference of Ray's to what will be the answer.
            owner: whom is asked.
            translated: makes an error of Ray's one of ours.

        Returns:
            The answer; it fails with ``HostDied`` when the owner is given up or the gate closed.
        """
        answer: Promise[Any] = Promise()

        def ended(found: Future[Any]) -> None:
            if self._asked.pop(answer, None) is None:
                return
            error = found.exception()
            if error is None:
                answer.set_result(found.result())
            else:
                answer.set_exception(translated(error))

        self._asked[answer] = owner  # first: who closes the gate meanwhile finds it
        try:
            with self.passed():
                call().future().add_done_callback(ended)
        except HostDied as died:
            self._fail(answer, str(died))
        except BaseException:
            self._asked.pop(answer, None)
            raise
        return answer

    def give_up(self, owner: object, why: str) -> None:
        """Fail what was asked of ``owner``."""
        for answer, asked in list(self._asked.items()):
            if asked is owner:
                self._fail(answer, why)

    def _fail(self, answer: Promise[Any], why: str) -> None:
        if self._asked.pop(answer, None) is not None:
            answer.set_exception(HostDied(why))

    def close(self, why: str) -> None:
        """Let nobody call Ray any more, and fail what has no answer."""
        with self._lock:
            self.closed = self.closed or why
        for answer in list(self._asked):
            self._fail(answer, why)

    def wait_until_empty(self, patience: float) -> bool:
        """Wait up to some seconds until nobody is inside, and return whether that is so."""
        deadline = time.monotonic() + patience
        while self._inside and time.monotonic() < deadline:
            time.sleep(_LOOK)
        return not self._inside
