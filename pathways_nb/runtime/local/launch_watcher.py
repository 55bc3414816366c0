"""The watcher of an island's launches."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pathways_nb.runtime.local.watcher import Clock, Launched, Watcher
from pathways_nb.timing.waits import DATA, LANE, MESSAGE, WINDOW
from pathways_nb.trace.rows import Cause, Label


class LaunchWatcher(Watcher):
    """Watches the launches on one island.

    Args:
        name: of the thread.
        clock: the controller's clock, in seconds.
        on_ended: called with the number of launches that have ended.
        devices: number of devices of the island.
    """

    def __init__(self, name: str, clock: Clock, on_ended: Callable[[int], None], devices: int):
        super().__init__(name, clock, on_ended)
        self.free_at = [0.0] * devices
        """When the last launch on each device ended."""
        self._last: tuple[Label | None, int] = None, -1
        """The label of the launch that ended last, and its run."""

    @property
    def room(self) -> Cause:
        """The launch that ended last, as the cause of what waited for room."""
        return Cause(WINDOW, *self._last)

    def _lost(self, lost: list[range], launched: Launched) -> list[range]:
        """Return the devices of launches whose output was taken over, and after which no other ran there.

        The launch that took the output over is sure to come.
        """
        taken = getattr(launched.witness, "is_deleted", bool)()
        if not lost and not taken:
            return lost
        label = launched.launch_range.run.compiled_plan.actions[launched.step].label
        mine = range(label.device, label.device + label.devices)
        apart = [one for one in lost if one.stop <= mine.start or mine.stop <= one.start]
        return [*apart, mine] if taken else apart

    def _end(self, launched: Launched, end: float, failure: BaseException | None, quality: str) -> None:
        label = launched.launch_range.run.compiled_plan.actions[launched.step].label
        ready, why = self._released(launched)
        start, why = max(ready, launched.dispatched), MESSAGE if launched.dispatched > ready else why
        self.free_at[label.device : label.device + label.devices] = [end] * label.devices
        launched.launch_range.device_seconds += max(end - start, 0.0) * label.devices
        if self._row > 1:
            launched.launch_range.run.compiled_plan.lasts[launched.step] = max(end - start, 0.0)
        label = self._record(launched, label, start, end, quality, failure, why)
        self._last = label, launched.launch_range.run.serial

    def _weights(self, batch: Sequence[Launched]) -> Sequence[float]:
        """Return the seconds that each took when it was last watched; for one never watched, the mean of the others."""
        known = [launched.launch_range.run.compiled_plan.lasts.get(launched.step) for launched in batch]
        seen = [seconds for seconds in known if seconds is not None]
        usual = sum(seen) / len(seen) if seen else 1.0
        return [max(usual if seconds is None else seconds, 1e-7) for seconds in known]

    def _ready_at(self, launched: Launched) -> float:
        return self._released(launched)[0]

    def _released(self, launched: Launched) -> tuple[float, int]:
        """Return when it could begin, its devices free and its inputs from elsewhere there, and which came last."""
        run = launched.launch_range.run
        action = run.compiled_plan.actions[launched.step]
        ready, why = max(self.free_at[action.label.device : action.label.device + action.label.devices]), LANE
        for step in action.waits_for:
            if (end := run.ends.get(step, 0.0)) >= ready:
                ready, why = end, DATA
        return ready, why
