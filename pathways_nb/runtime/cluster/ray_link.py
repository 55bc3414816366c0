"""The way to a host that is a Ray actor."""

from __future__ import annotations

import pickle
from collections import deque
from contextlib import suppress
from typing import Any

from pathways_nb.runtime.cluster.gate import Gate
from pathways_nb.runtime.cluster.host_island import HostDied
from pathways_nb.runtime.hosts.meeting import close
from pathways_nb.runtime.hosts.messages import HostFacts, Report
from pathways_nb.util import processes
from pathways_nb.util.processes import ProcessId
from pathways_nb.util.waiting import Promise

_METHODS = frozenset({"begin", "node", "address", "meet", "stamp", "set_clock", "process_id", "heartbeat"})
"""Methods of the actor itself; all others are the host's."""
_AHEAD = 2
"""Questions for reports under way at once."""
_LOOK = 1.0
"""Seconds that a thread waits inside Ray at most: while it does, this process cannot be disconnected."""


class RayLink:
    """A link to one actor.

    Args:
        ray: Ray's module.
        actor: its handle.
        gate: in front of Ray.
    """

    facts: HostFacts
    meeting = ""
    """Where its island meets, if it is the first host."""

    def __init__(self, ray: Any, actor: Any, gate: Gate | None = None):
        self.ray, self.actor, self._gate = ray, actor, gate or Gate()
        self._asked: deque[Any] = deque()
        self._dead = ""
        """Why nothing more will come from it."""
        self.process: Promise[ProcessId] = self.ask("process_id")

    def post(self, messages: bytes) -> None:
        """Send pickled messages; Ray keeps the order of one caller's calls."""
        with suppress(HostDied), self._gate.passed():
            self.actor.take.remote(messages)

    def ask(self, method: str, *args: Any) -> Promise[Any]:
        """Call a method beside the messages; the future's error is ``HostDied`` if the host died."""
        if self._dead:
            answer: Promise[Any] = Promise()
            answer.set_exception(HostDied(self._dead))
            return answer

        def call() -> Any:
            own = method in _METHODS
            return getattr(self.actor, method).remote(*args) if own else self.actor.ask.remote(method, *args)

        return self._gate.promise(call, self, self._translated)

    def reports(self) -> list[Report]:
        """Wait for reports.

        Returns:
            All that there are; none after a while without any.

        Raises:
            HostDied: the actor's process is gone.
        """
        # The next question is there before the answer to this one, so no report waits for a question on its way.
        while len(self._asked) < _AHEAD:
            with self._gate.passed():
                self._asked.append(self.actor.reports.remote())
        while True:
            if self._dead:
                raise HostDied(self._dead)
            try:
                with self._gate.passed():
                    found: list[Report] = pickle.loads(self.ray.get(self._asked[0], timeout=_LOOK))
                break
            except self.ray.exceptions.GetTimeoutError:
                continue
            except self.ray.exceptions.RayError as error:
                raise self._translated(error) from None
        self._asked.popleft()
        return found

    def kill(self, why: str = "it was ended") -> None:
        """End the actor's process at once, also if it stands still; what it was asked fails."""
        self._dead = self._dead or why
        close(self.meeting)
        if self.process.done():
            with suppress(Exception):
                processes.end(self.process.result())  # Ray only asks it to end, which one that stands still never does
        with suppress(HostDied), self._gate.passed():
            self.ray.kill(self.actor, no_restart=True)
        self._gate.give_up(self, self._dead)

    def _translated(self, error: BaseException) -> BaseException:
        exceptions = self.ray.exceptions
        if isinstance(error, exceptions.RayTaskError):
            return error.cause if isinstance(error.cause, Exception) else error
        if isinstance(error, exceptions.RayError):
            return HostDied(_why(error))
        return error


def _why(error: BaseException) -> str:
    """Return why there is no actor; Ray's last line says why one has not started."""
    said = str(error).strip()
    never = "never ran" in said or "creation task" in said
    return f"its process did not start: {said.splitlines()[-1].strip()}" if never else "its process ended"
