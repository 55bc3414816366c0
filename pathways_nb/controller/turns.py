"""Turns of clients that competed: what each got of what its share promises, and whether it had more to do.

A share is a promise for clients that always have work queued. One that waits for each call before it makes the next has
nothing queued when its next turn comes, so the turn goes to another client, whatever the policy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

_NEAR = 0.05
"""Parts of all device time up to which what a client got counts as what it was promised."""
_OFTEN = 0.1
"""Part of its turns from which on a client without further work explains that it got less."""

_SLOW = ". If you do, processes and not devices are the limit: make several small calls in one program"


@dataclass
class ContendedTurns:
    """The turns of one client in which others competed with it.

    Args:
        share: its weight.
        count: number of gangs that were enqueued.
        last: how many of them had nothing of the same client queued behind them.
        seconds: device-seconds of all of them.
    """

    share: float = 1.0
    count: int = 0
    last: int = 0
    seconds: float = 0.0

    def add(self, share: float, seconds: float, more: bool) -> None:
        """Count one more turn.

        Args:
            share: weight of the client.
            seconds: device-seconds that it is expected to take.
            more: whether the client has something else queued.
        """
        self.share, self.count, self.seconds = share, self.count + 1, self.seconds + seconds
        self.last += not more

    def since(self, before: ContendedTurns) -> ContendedTurns:
        """Return the turns after an earlier state."""
        return ContendedTurns(
            self.share, self.count - before.count, self.last - before.last, self.seconds - before.seconds
        )


def shares_line(turns: Mapping[str, ContendedTurns], processes: bool = False) -> str:
    """Return in one line what clients got while they competed, what they asked for, and why they got less.

    Args:
        turns: by client; ``""`` stands for calls for no client.
        processes: whether clients are in several processes, which may take longer to make calls than devices to run
            them.

    Returns:
        The line; empty if fewer than two clients competed, or all asked for the same and got it.
    """
    turns = {client: one for client, one in turns.items() if one.count}
    seconds = sum(one.seconds for one in turns.values())
    if len(turns) < 2 or seconds <= 0:
        return ""
    shares, parts, reasons = sum(one.share for one in turns.values()), [], []
    plain = len({one.share for one in turns.values()}) == 1
    for client, one in sorted(turns.items()):
        asked, got, name = one.share / shares, one.seconds / seconds, client or "no client"
        parts.append(f"{name} {got:.0%} (asked {asked:.0%})")
        plain &= abs(got - asked) < _NEAR
        if got < asked - _NEAR and one.last > _OFTEN * one.count:
            reasons.append(
                f"{name} had no other call queued at {one.last / one.count:.0%} of its turns, and a share counts only "
                f"for a client with calls queued: make the next calls before you wait for one{_SLOW * processes}"
            )
    return "" if plain else "; ".join([f"while they competed {', '.join(parts)}", *reasons])
