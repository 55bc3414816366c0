"""The labels of ops in JSON, declared once for every file that holds ops."""

from __future__ import annotations

from functools import partial
from typing import get_args

from pathways_nb.trace.launch_ops import OpKind, OpLabel, Phase
from pathways_nb.util.json_forms import Form, list_of, one_of, row
from pathways_nb.util.json_text import Field

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
