"""The way to a host that is a Ray actor."""

from __future__ import annotations

import pickle
from contextlib import suppress
from typing import Any

from pathways_nb.runtime.cluster.gate import Gate
from pathways_nb.runtime.cluster.host_island import HostDied
from pathways_nb.runtime.hosts.channel import Channel
from pathways_nb.runtime.hosts.host_actor import CONTROLLER
from pathways_nb.runtime.hosts.meeting import close
from pathways_nb.runtime.hosts.messages import HostFacts
from pathways_nb.runtime.hosts.reports import Report
from pathways_nb.util import processes
from pathways_nb.util.processes import ProcessId
from pathways_nb.util.waiting import Promise

_METHODS = frozenset({"begin", "node", "address", "meet", "stamp", "set_clock", "process_id", "heartbeat"})
"""Methods of the actor itself; all others are the host's."""
_LOOK = 1.0
"""Seconds after which who waits for reports is given none, and may look whether it is still to wait."""


class RayLink:
    """A link to one actor: its questions are Ray's calls, its messages and reports go by a channel.

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
        self._channel: Channel | None = None
        self._dead = ""
        """Why nothing more will come from it."""
        self.process: Promise[ProcessId] = self.ask("process_id")

    def connect(self) -> None:
        """Open the channel, once ``facts`` are known.

        Raises:
            OSError: the host does not take connections.
        """
        assert self.facts.door is not None
        self._channel = self.facts.door.enter()
        self._channel.send(CONTROLLER)

    def post(self, messages: bytes) -> None:
        """Send pickled messages."""
        assert self._channel is not None
        self._channel.send(messages)

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
        assert self._channel is not None
        try:
            found = self._channel.receive(_LOOK)
        except EOFError:
            raise HostDied(self._dead or "its process ended") from None
        reports: list[Report] = [] if found is None else pickle.loads(found)
        return reports

    def kill(self, why: str = "it was ended") -> None:
        """End the actor's process at once, also if it stands still; what it was asked fails."""
        self._dead = self._dead or why
        close(self.meeting)
        if self._channel is not None:
            self._channel.close()
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
