"""``pw.predict``: the makespan that the controller's own core gives a program on a virtual clock."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pathways_nb.errors import UsageError, is_number
from pathways_nb.plan.graph import Graph
from pathways_nb.program.program import Program
from pathways_nb.runtime.sim.makespan import makespan
from pathways_nb.session import default_controller, tenant_scope
from pathways_nb.session.calls import submit
from pathways_nb.util.json_text import shortened
from pathways_nb.util.limits import LONGEST
from pathways_nb.util.words import a_type_of


def predict(program: Program, *args: Any, seconds: Mapping[str, float] | None = None) -> float:
    """Seconds that a call would take, from its first message to the end of its last node (Pathways, section 4.5).

    Placed as on the current controller, with its mode of dispatch and its ``dcn_latency``; nothing is compiled or
    run. Nodes and messages take time; transfers and the host's own work take none.

    Args:
        program: what would be called. args: its arguments.
        seconds: how long a node lasts, by its name; nodes of ``pw.work`` that are not named last what they declare.

    Raises:
        UsageError: not a program, nobody says how long a node lasts, or ``seconds`` names none of its nodes or holds
            what is no time.
    """
    if not isinstance(program, Program):
        raise UsageError(f"predict({program!r}): {a_type_of(program)} is not a program; wrap it in pw.program.")
    controller, call = default_controller.get(), program.signature(args, {})
    with tenant_scope.calling(controller, program.name):
        plan = submit.plan_of(controller, submit.traced(controller, program, call))
    asked = controller.attach_options
    return makespan(plan, _seconds(plan.graph, seconds or {}), controller.machine.dispatch, asked.dcn_latency)


def _seconds(graph: Graph, given: Mapping[str, float]) -> dict[int, float]:
    nodes = [node for node in graph.nodes if node.place is not None]
    _check(graph.name, given, list(dict.fromkeys(node.name for node in nodes)))
    found = {node.id: given.get(node.name, node.seconds) for node in nodes}
    silent = dict.fromkeys(node.name for node in nodes if found[node.id] is None)
    if silent:
        raise UsageError(
            f"predict({graph.name}): nobody says how long {', '.join(map(repr, silent))} last. "
            f"Add seconds={{{', '.join(f'{name!r}: 1e-3' for name in silent)}}}, with your own times, or use pw.work."
        )
    return {node: float(last) for node, last in found.items() if last is not None}


def _check(program: str, given: Mapping[str, float], names: Sequence[str]) -> None:
    """Refuse times of nodes that are not there, and what is no time."""
    for name, last in given.items():
        if name not in names:
            known = ", ".join(map(repr, names)) or "none"
            raise UsageError(
                f"predict({program}): seconds names {name!r}, which is no node that runs on devices. "
                f"There are: {known}."
            )
        if not is_number(last) or not 0 <= last <= LONGEST:
            raise UsageError(
                f"predict({program}): seconds[{name!r}] is {shortened(last)}; write a number of seconds, 0 or more "
                f"(at most {LONGEST:g})."
            )
