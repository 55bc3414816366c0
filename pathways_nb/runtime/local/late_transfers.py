"""Late transfers: those to an island whose source did not exist when it was their turn.

The island's dispatcher goes on with the launches behind them, so that an exchange between islands lies under the
computation. A second persistent thread carries them out, each as soon as its source exists, in the order of their turns
among those that are ready.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from pathways_nb.program import jax_contexts
from pathways_nb.runtime.local.watcher import LaunchRange
from pathways_nb.runtime.run_state import RunState


class LateTransfers(threading.Thread):
    """Carries out steps that had to wait.

    Args:
        name: of the thread.
        is_ready: whether a step of a run can be carried out; whoever changes that notifies the run's ``launched``.
        carry_out: carries out a step that is ready.
    """

    def __init__(
        self, name: str, is_ready: Callable[[RunState, int], bool], carry_out: Callable[[LaunchRange, int], object]
    ):
        super().__init__(name=name, daemon=True)
        self._is_ready, self._carry_out = is_ready, carry_out
        self._inbox: queue.SimpleQueue[tuple[LaunchRange, int] | None] = queue.SimpleQueue()
        self._waiting: list[tuple[LaunchRange, int]] = []
        self._stopped = False

    def add(self, launch_range: LaunchRange, step: int) -> None:
        """Carry out a step as soon as it is ready."""
        self._inbox.put((launch_range, step))
        launch_range.run.launched.notify_all()

    def stop(self) -> None:
        """End after what was added before."""
        self._inbox.put(None)

    def run(self) -> None:
        """Carry out steps until stopped."""
        while self._waiting or not self._stopped:
            self._receive()
            self._carry_out_ready()

    def _receive(self) -> None:
        """Wait for another step, or until one that waits is ready."""
        if self._waiting:
            # All runs of a driver share the condition.
            self._waiting[0][0].run.launched.wait(
                lambda: not self._inbox.empty() or any(map(self._ready, self._waiting))
            )
        while not (self._waiting and self._inbox.empty()) and not self._stopped:
            item = self._inbox.get()
            if item is None:
                self._stopped = True
            else:
                self._waiting.append(item)

    def _ready(self, item: tuple[LaunchRange, int]) -> bool:
        return self._is_ready(item[0].run, item[1])

    def _carry_out_ready(self) -> None:
        """Carry out every step that is ready; a launch may wait for what it makes."""
        for item in list(filter(self._ready, self._waiting)):
            self._waiting.remove(item)
            launched = item[0].run.launched
            jax_contexts.adopt(item[0].run.compiled_plan.contexts)
            self._carry_out(*item)
            launched.notify_all()
