"""What a run's controller was told and decided: its log, its decisions, and what another policy would have decided."""

from __future__ import annotations

from typing import Any

from pathways_nb.controller import log_text
from pathways_nb.controller.decisions import decisions, log_or_error
from pathways_nb.controller.log import Log
from pathways_nb.controller.policies import Policy, name_of, policy_of
from pathways_nb.results.decision_explorer import Decisions
from pathways_nb.results.policy_replay_player import PolicyReplay, replay_of
from pathways_nb.trace.record import Record


class ControllerHistory:
    """The part of a run that its controller's log answers."""

    name: str
    record: Record
    about: dict[str, Any]
    kept_log: Log | bytes

    @property
    def began(self) -> float:
        """When the recording began, in seconds of its controller's clock."""
        return float(self.about.get("began", self.record.origin))

    @property
    def log(self) -> Log | None:
        """What the controller was told during the run, and answered, from a copy of its state before; once it is over.

        ``log.replay()`` lets the controller's core answer again, without devices. Its first ``log.before`` entries came
        before the run, and of a long run the first ``log.missing`` events are forgotten. ``None`` within the recording,
        of a run whose controller is another process's or was replaced meanwhile, and of an older file.

        Raises:
            UsageError: the log in the file that was loaded is damaged.
        """
        # Read when it is asked for: few runs that are loaded are replayed, and a log may be the longest part.
        if isinstance(self.kept_log, bytes) and self.kept_log:
            self.kept_log = log_text.of_run(self.kept_log, self.name)
        return None if isinstance(self.kept_log, bytes) else self.kept_log

    def steps(self) -> Decisions:
        """Return what the controller decided, one decision at a time, with the rule and what else it could have chosen.

        At the end of a cell, they are played beside the run's timeline. Of a long run, the decisions at its first
        ``log.missing`` events are forgotten.

        Raises:
            UsageError: the run has no log, or one that cannot decide again.
        """
        log = log_or_error(self.log)
        run: Any = self  # the run of which this is a part
        return Decisions(decisions(log, self.began), run, self.began, log.missing)

    def replay(self, policy: str | Policy) -> PolicyReplay:
        """Let another policy decide on the same calls, in simulated time, and compare it with the recorded one.

        Clients call at the recorded times. Nodes take the time that was recorded for them, transfers and enqueues none;
        neither do nodes that the run has not carried out, as those of cancelled calls, which ``untimed`` counts. Of a
        long run, the calls in its first ``log.missing`` events are left out.

        Args:
            policy: name of a policy, or a function ``policy(ready, state)``, as for ``pw.attach``.

        Returns:
            The decisions of both, the first that differs, and when each call ends under both.

        Raises:
            UsageError: the run has no log, one that cannot decide again, or clients waited for memory for values that
                they put; there is no such policy, or it failed.
        """
        chosen, log = policy_of(policy), log_or_error(self.log)
        names = name_of(log.snapshot.machine().policy), name_of(chosen)
        found = self.record.events().of_kind("compute", "collective", "host")
        calls, nodes, seconds = found["run"].tolist(), found["node"].tolist(), (found["end"] - found["start"]).tolist()
        lasted = dict(zip(zip(calls, nodes, strict=True), seconds, strict=True))
        return replay_of(log, lambda call, node: lasted.get((call, node)), chosen, names, self.began)
