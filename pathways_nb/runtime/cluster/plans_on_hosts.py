"""The plans that hosts have: each travels once, is known by its content, and is forgotten when nobody can call it."""

from __future__ import annotations

import threading
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any

from pathways_nb.runtime.cluster.host_island import HostIsland, wait
from pathways_nb.runtime.cluster.messenger import Messenger
from pathways_nb.runtime.event_loop import drained
from pathways_nb.runtime.hosts.messages import PortableNode
from pathways_nb.runtime.hosts.portable_plan import PortablePlan, packed
from pathways_nb.runtime.lowering.compiled_plan import CompiledPlan
from pathways_nb.util.waiting import Workers


class PlansOnHosts:
    """The plans of one driver.

    Args:
        islands: returns the islands; some may come later.
        messenger: tells hosts what to forget.
        workers: ask several islands at once.
    """

    def __init__(self, islands: Callable[[], Sequence[HostIsland]], messenger: Messenger, workers: Workers):
        self._islands, self._messenger, self._workers = islands, messenger, workers
        self.salt = ""
        """Text added to digests, so that drivers that share hosts never share a plan."""
        self._digests: weakref.WeakKeyDictionary[CompiledPlan, str] = weakref.WeakKeyDictionary()
        self._unused = deque[str]()
        """Digests of plans that were freed."""
        self._forgotten: Counter[str] = Counter()
        """How often hosts were told to forget a content: what they are given later must outlive that message."""
        self._packing = threading.Lock()

    def digest(self, plan: CompiledPlan) -> str:
        """Return by what hosts know a plan that they were given."""
        return self._digests[plan]

    def install(self, made: CompiledPlan) -> None:
        """Give a plan to the hosts of its islands, which compile its nodes, and wait for them.

        Raises:
            LostError: an island lost its hosts meanwhile.
        """
        portable = PortablePlan.of(made)
        content, data = packed(portable)
        with self._packing:  # plans of the same content are one while any of them is in use
            digest = f"{content}, {self._forgotten[content]} forgotten, {self.salt}"
            self._digests[made] = digest
        calls: list[Any] = [action.call for action in made.actions]
        nodes = {call.digest: call for call in calls if isinstance(call, PortableNode)}
        weakref.finalize(made, self._unused.append, digest).atexit = False
        islands = self._islands()
        for answer in [
            self._workers.submit(self._install, islands[island], portable, digest, data, nodes)
            for island in made.plan.islands
        ]:
            wait(answer)
        self._messenger.installed(digest, made.plan, made.footprint)

    def _install(
        self, island: HostIsland, portable: PortablePlan, digest: str, data: bytes, nodes: dict[str, PortableNode]
    ) -> None:
        if digest not in island.known:
            steps = zip(portable.compiled.plan.steps, portable.nodes, strict=True)
            needed = {node: nodes[node] for step, node in steps if node and step.island == island.index}
            island.ask_all("install", digest, data, needed)
            island.known.add(digest)

    def forget_unused(self) -> None:
        """Have hosts forget plans that were freed."""
        with self._packing:
            unused = set(drained(self._unused)) - set(self._digests.values())
            self._forgotten.update(digest.partition(",")[0] for digest in unused)
        if unused:
            self._messenger.forget_plans(tuple(unused))
            for island in self._islands():
                island.known -= unused
