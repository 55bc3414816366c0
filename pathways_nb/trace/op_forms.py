"""The labels of ops, and their graph, in JSON, declared once for every file that holds them."""

from __future__ import annotations

from functools import partial
from typing import get_args

from pathways_nb.plan.source_texts import SourceTexts
from pathways_nb.trace.launch_ops import OpKind, OpLabel, Phase
from pathways_nb.trace.op_graph import GraphEdge, GraphOp, OpGraph
from pathways_nb.util.json_forms import Form, list_of, one_of, optional, record, row
from pathways_nb.util.json_text import DamagedError, Field

_KIND, _NODE = one_of(*get_args(OpKind)), partial(Field.whole, low=-1, high=2**31 - 1)
# The fields of OpLabel: name, source, kind, launch, program, node; line, phase, work.
_LABEL = (
    Field.text,
    Field.text,
    _KIND,
    Field.text,
    Field.text,
    _NODE,
    Field.text,
    one_of(*get_args(Phase)),
    Field.text,
)
OP_LABELS: Form[tuple[OpLabel, ...]] = list_of(row(lambda parts: OpLabel(*parts), *_LABEL, before=6))

_OP: Form[GraphOp] = row(
    GraphOp._make,
    Form(Field.texts, list),
    Field.text,
    _KIND,
    one_of(*get_args(Phase)),
    Field.text,
    *(Field.number,) * 3,
    Field.truth,
)
_EDGE: Form[GraphEdge] = row(GraphEdge._make, Field.whole, Field.whole, Field.number)
_LINES = list_of(row(tuple, Field.whole, Field.text))
_TEXTS: Form[dict[str, tuple[tuple[int, str], ...]]] = Form(
    lambda field: {name: _LINES.read(field[name]) for name in field.table()},
    lambda files: {name: _LINES.write(lines) for name, lines in files.items()},
)


def _read_graph(field: Field) -> OpGraph:
    found = _GRAPH.read(field)
    if any(max(edge.source, edge.target) >= len(found.ops) for edge in found.edges):
        raise DamagedError(f"{field.where} has edges between operations that do not exist")
    return found


_GRAPH: Form[OpGraph] = record(OpGraph, ops=list_of(_OP), edges=list_of(_EDGE), texts=record(SourceTexts, files=_TEXTS))
OP_GRAPH: Form[OpGraph] = optional(Form(_read_graph, _GRAPH.write), OpGraph(), may_lack=True)
"""The form of a graph of operations; files of before it was kept have none."""
