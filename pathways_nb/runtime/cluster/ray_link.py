"""The way to a host that is a Ray actor."""

from __future__ import annotations

import pickle
from collections import deque
from concurrent.futures import Future
from typing import Any

from pathways_nb.runtime.cluster.host_island import HostDied
from pathways_nb.runtime.hosts.meeting import close
from pathways_nb.runtime.hosts.messages import HostFacts, Report
from pathways_nb.util.waiting import Promise

_METHODS = frozenset({"begin", "node", "address", "meet", "stamp", "set_clock"})
"""Methods of the actor itself; all others are the host's."""
_AHEAD = 2
"""Questions for reports under way at once."""


class RayLink:
    """A link to one actor.

    Args:
        ray: Ray's module.
        actor: its handle.
    """

    facts: HostFacts
    meeting = ""
    """Where its island meets, if it is the first host."""

    def __init__(self, ray: Any, actor: Any):
        self.ray, self.actor = ray, actor
        self._asked: deque[Any] = deque()

    def post(self, messages: bytes) -> None:
        """Send pickled messages; Ray keeps the order of one caller's calls."""
        self.actor.take.remote(messages)

    def ask(self, method: str, *args: Any) -> Promise[Any]:
        """Call a method beside the messages; the future's error is ``HostDied`` if the host died."""
        own = method in _METHODS
        reference = getattr(self.actor, method).remote(*args) if own else self.actor.ask.remote(method, *args)
        answer: Promise[Any] = Promise()

        def ended(found: Future[Any]) -> None:
            error = found.exception()
            if error is None:
                answer.set_result(found.result())
            else:
                answer.set_exception(self._translated(error))

        reference.future().add_done_callback(ended)
        return answer

    def reports(self) -> list[Report]:
        """Wait for reports.

        Returns:
            All that there are; none after a while without any.

        Raises:
            HostDied: the actor's process is gone.
        """
        # The next question is there before the answer to this one, so no report waits for a question on its way.
        while len(self._asked) < _AHEAD:
            self._asked.append(self.actor.reports.remote())
        try:
            found: list[Report] = pickle.loads(self.ray.get(self._asked.popleft()))
        except self.ray.exceptions.RayError as error:
            raise self._translated(error) from None
        return found

    def kill(self) -> None:
        """End the actor's process at once."""
        close(self.meeting)
        self.ray.kill(self.actor, no_restart=True)

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
