"""``pw.predict``: the makespan that the controller's own scheduler gives a program on a virtual clock.

The prediction runs the scheduler that dispatches on real devices (``runtime.sim.makespan``), so it contains the same
order of enqueues and the same messages; only durations are given. Nodes and messages take time. Transfers
and the host's own work take none: for those simulate a chip with ``pw.attach("sim", …)``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pathways_nb.errors import UsageError, is_number
from pathways_nb.plan.graph import Graph
from pathways_nb.runtime.sim.makespan import makespan
from pathways_nb.session import default_controller, tenant_scope
from pathways_nb.session.calls import submit
from pathways_nb.session.calls.program import Program
from pathways_nb.util.json_text import shortened
from pathways_nb.util.limits import LONGEST
from pathways_nb.util.words import a_type_of


def predict(program: Program, *args: Any, seconds: Mapping[str, float] | None = None) -> float:
    """Return the makespan of a call in seconds, from its first message to the end of its last node (Pathways, 4.5).

    The program is placed as on the current controller, with its dispatch mode and its ``dcn_latency``. Nothing is
    compiled or run. Transfers and the host's own work count as zero.

    Args:
        program: the program that would be called.
        *args: its arguments.
        seconds: duration of a node by its name. Nodes of ``pw.work`` that are not named take what they declare.

    Raises:
        UsageError: not a program, the duration of a node is unknown, or ``seconds`` names no node of it or holds a
            value that is no duration.
    """
    if not isinstance(program, Program):
        raise UsageError(f"predict({program!r}): {a_type_of(program)} is not a program; wrap it in pw.program.")
    controller, call = default_controller.get(), program.signature(args, {})
    # Traced and placed as a call would be, but never submitted: nothing is compiled.
    with tenant_scope.calling(controller, program.name):
        plan = submit.plan_of(controller, submit.traced(controller, program, call))
    # As attached: the same delay of messages that a call there would have.
    asked = controller.attach_options
    return makespan(plan, _seconds(plan.graph, seconds or {}), controller.machine.dispatch, asked.dcn_latency)


def _seconds(graph: Graph, given: Mapping[str, float]) -> dict[int, float]:
    """Return the duration of every node that runs on devices, by its id.

    Raises:
        UsageError: a node has no duration, or ``given`` is wrong.
    """
    nodes = [node for node in graph.nodes if node.place is not None]
    _check(graph.name, given, list(dict.fromkeys(node.name for node in nodes)))
    # A name stands for all nodes that have it, such as one stage's calls for every microbatch.
    found = {node.id: given.get(node.name, node.seconds) for node in nodes}
    # Each name once, in the order of the program, as the error shows them.
    silent = dict.fromkeys(node.name for node in nodes if found[node.id] is None)
    if silent:
        raise UsageError(
            f"predict({graph.name}): the duration of {', '.join(map(repr, silent))} is unknown. "
            f"Add seconds={{{', '.join(f'{name!r}: 1e-3' for name in silent)}}}, with your own times, or use pw.work."
        )
    return {node: float(last) for node, last in found.items() if last is not None}


def _check(program: str, given: Mapping[str, float], names: Sequence[str]) -> None:
    """Refuse durations of nodes that do not exist, and values that are no duration.

    Args:
        program: its name, for the error.
        given: seconds by the name of a node.
        names: the nodes that run on devices.

    Raises:
        UsageError: naming the entry and the nodes there are.
    """
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
