"""The whole state of the single controller, without what happens to it.

``state_machine`` changes it, ``scheduler`` reads it. What a client's account, a submitted program and an island's queue
consist of is in ``state``, memory in ``held_memory``, buffers in ``store``.
"""

from __future__ import annotations

import math
import weakref
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal

from pathways_nb.controller.admission import Admission
from pathways_nb.controller.events_and_instructions import Submitted
from pathways_nb.controller.held_memory import DeviceMemory
from pathways_nb.controller.policies import PerClient, Policy, keeps_order, promises_shares, stride
from pathways_nb.controller.precedence import Precedence
from pathways_nb.controller.put_requests import PutRequests
from pathways_nb.controller.state import CallState, ClientState, GangEstimates, IslandQueue
from pathways_nb.controller.store import Store
from pathways_nb.controller.turns import ContendedTurns
from pathways_nb.plan.plan import Plan

Dispatch = Literal["parallel", "sequential"]


@dataclass
class ControllerState:
    """Clients, the programs they called, what is enqueued on islands, and the ledgers of memory and buffers.

    Args:
        dispatch: ``"parallel"`` or ``"sequential"`` (Pathways, Figure 4).
        policy: chooses between programs.
        devices: number of devices of each island.
        budgets: bytes of memory per device, for each island; 0, or no entry, means no limit.
        clients: accounts of each client, by name.
    """

    dispatch: Dispatch = "parallel"
    policy: Policy = stride
    devices: Sequence[int] = (1, 1, 1)
    budgets: Sequence[int] = ()
    clients: dict[str, ClientState] = field(default_factory=dict)
    active: int = 0
    """Number of clients with unfinished programs. More than one: clients compete, and the policy decides."""
    left_at: float = -math.inf
    """When a client's last program ended while others had some."""
    calls: dict[int, CallState] = field(default_factory=dict)
    """By call: submitted and not finished."""
    waiting: dict[str, dict[int, CallState]] = field(default_factory=dict)
    """By client: calls that are not wholly enqueued, oldest first."""
    given_up: dict[int, CallState] = field(default_factory=dict)
    """Cancelled calls with gangs that are not enqueued. They are enqueued first, whatever they are behind, to be
    skipped."""
    queues: dict[int, IslandQueue] = field(default_factory=dict)
    """By island: what is enqueued and not done."""
    precedence: Precedence = field(default_factory=Precedence)
    turns: dict[str, ContendedTurns] = field(default_factory=dict)
    """By client, closed ones too: what it got while others competed with it."""
    _wake: float | None = None
    """Time of the next ``Woke`` event, in seconds; ``None`` if none is requested."""
    _estimates: weakref.WeakKeyDictionary[Plan, GangEstimates] = field(default_factory=weakref.WeakKeyDictionary)
    """Durations learnt for each plan, shared by all its calls. Weak keys: the controller must not keep plans alive."""

    def __post_init__(self) -> None:
        self.memory = DeviceMemory(self.devices, self.budgets)
        self.store = Store(self.memory)
        self.admission = Admission(self.memory, self.store, self.clients)
        self.put_requests = PutRequests(self.admission, self.store)
        self.in_order = keeps_order(self.policy)
        """Whether the policy takes each client's programs in order of submission and ignores their durations. Then one
        gang of each client is enough to choose from."""
        self.of_clients = [PerClient(self.clients, name) for name in ("seconds", "share", "priority", "passed")]
        """Arguments of ``PolicyState`` after ``now``, in its order."""

    @property
    def promised(self) -> dict[str, ContendedTurns]:
        """The turns of clients that competed, by client; none under a policy that reads no shares."""
        return self.turns if promises_shares(self.policy) else {}

    @property
    def begun(self) -> frozenset[int]:
        """The calls under way of which steps are enqueued."""
        # A copy first: other threads ask while the controller's own thread adds and removes calls.
        return frozenset(call for call, state in list(self.calls.items()) if any(state.launched.values()))

    def _client(self, name: str) -> ClientState:
        """Return a client's account; open one if it has none."""
        client = self.clients.get(name)
        if client is None:
            client = self.clients[name] = ClientState()
        return client

    def _forget_client(self, name: str) -> None:
        """Delete the account of a client that has closed and has no unfinished calls."""
        if self.clients[name].closed and not self.clients[name].unfinished:
            del self.clients[name]

    def _new_call(self, event: Submitted, now: float) -> CallState:
        """Return the state of a new call, of which nothing is enqueued yet."""
        none = dict.fromkeys(event.plan.orders, 0)
        estimates = self._estimates.get(event.plan)
        if estimates is None:
            estimates = self._estimates[event.plan] = GangEstimates(event.plan)
        left = sum(map(len, event.plan.gangs.values()))
        return CallState(event, estimates, left, none, none.copy(), none.copy(), since=now)
