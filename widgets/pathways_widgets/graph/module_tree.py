"""The operations of a step as a tree: modules, within them lines of code, within them operations.

What one opens is a group: of a module, or of a line with several operations. A group that holds nearly all of the step
is opened from the start, and one within which there is one thing only is that thing.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from pathways_nb.trace.launch_ops import BACKWARD
from pathways_nb.trace.op_graph import REPEATED, GraphOp, OpGraph

MOST = 18
"""Parts of a group that are drawn, the longest; the others are one part, which is opened like any."""
_FEW, _SHORT = 6, 0.005
"""Parts that are all drawn, and of more the share of a group's seconds that a part has at least to be drawn."""
_NEARLY_ALL = 0.85
"""Share of a step's seconds from which on a group is opened from the start."""


@dataclass
class ModuleGroup:
    """Operations that belong together.

    Args:
        name: of the module, the line or the operation.
        ops: positions of its operations.
        parts: of which it consists, in the order in which they begin; none for operations that are alike.
        line: is this group's alone, where it stands for a line.
    """

    name: str
    ops: list[int]
    parts: list[ModuleGroup] = field(default_factory=list)
    line: str = ""


def tree_of(graph: OpGraph, name: str) -> ModuleGroup:
    """Return the whole step as a group.

    Args:
        graph: of the step.
        name: of the step.
    """
    whole = _group(graph, name, range(len(graph.ops)), 0)
    total = _seconds(graph, whole)
    while whole.parts:
        largest = max(whole.parts, key=lambda part: _seconds(graph, part))
        # Repeated blocks are one card first, however much they take.
        if not largest.parts or REPEATED in largest.name or _seconds(graph, largest) < _NEARLY_ALL * total:
            break
        rest = [part for part in whole.parts if part is not largest]
        whole = ModuleGroup(whole.name, whole.ops, _in_order(graph, [*largest.parts, *rest]))
    _fold_rest(graph, whole)
    return whole


def _group(graph: OpGraph, name: str, ops: Sequence[int], depth: int) -> ModuleGroup:
    """Return operations as a group whose parts are the modules and lines in it.

    Args:
        graph: of the step.
        name: of the group.
        ops: positions of its operations.
        depth: modules that lead to it.
    """
    modules: dict[str, list[int]] = {}
    lines: dict[str, list[int]] = {}
    for at in ops:
        path = graph.ops[at].path
        if len(path) > depth:
            modules.setdefault(path[depth], []).append(at)
        else:
            lines.setdefault(graph.ops[at].line, []).append(at)
    parts = [_group(graph, part, own, depth + 1) for part, own in modules.items()]
    for line, own in lines.items():
        alone = [ModuleGroup(graph.ops[at].name, [at]) for at in own]
        if len(own) > 1 and line and (len(set(lines) - {""}) > 1 or modules):
            parts.append(ModuleGroup(graph.texts.text_of(line) or line, own, alone, line))
        else:
            parts += alone
    # What is inside a group that has one part is that part's; its name says where it is.
    if len(parts) == 1 and depth and not parts[0].parts:
        return ModuleGroup(name, parts[0].ops)
    if len(parts) == 1 and parts[0].parts:
        return ModuleGroup(f"{name} / {parts[0].name}" if depth else name, parts[0].ops, parts[0].parts)
    return ModuleGroup(name, list(ops), _in_order(graph, parts))


def _fold_rest(graph: OpGraph, group: ModuleGroup) -> None:
    """Put what would crowd the picture of a group into one part: what takes no time, and what is too much."""
    for part in group.parts:
        _fold_rest(graph, part)
    longest = sorted(group.parts, key=lambda part: -_seconds(graph, part))
    least = _SHORT * _seconds(graph, group)
    count = min(sum(_seconds(graph, part) >= least for part in longest), MOST - 1)
    rest = longest[count:]
    if len(longest) > _FEW and len(rest) > 1:
        ops = sorted(at for part in rest for at in part.ops)
        others = ModuleGroup(f"{len(rest)} short ones", ops, _in_order(graph, rest))
        group.parts = _in_order(graph, [*longest[:count], others])


def _in_order(graph: OpGraph, parts: Iterable[ModuleGroup]) -> list[ModuleGroup]:
    """Return parts in the order in which they begin to compute; compilers move collectives to the front."""

    def begin(part: ModuleGroup) -> int:
        computes = (at for at in part.ops if graph.ops[at].kind == "compute" and graph.ops[at].phase not in BACKWARD)
        return min(computes, default=min(part.ops))

    return sorted(parts, key=begin)


def costliest(ops: Iterable[GraphOp]) -> str:
    """Return the line whose operations take longest, exposed seconds twice; empty if none is known."""
    found: dict[str, float] = {}
    for one in ops:
        if one.line:
            found[one.line] = found.get(one.line, 0.0) + one.seconds + one.exposed
    return max(found, key=found.__getitem__, default="")


def _seconds(graph: OpGraph, group: ModuleGroup) -> float:
    return sum(graph.ops[at].seconds for at in group.ops)
