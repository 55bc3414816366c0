"""Marks that carry an action of a pipeline schedule through JAX's tracing to the node that it becomes.

All microbatches of a stage call one jitted function, so the name of the function cannot say which microbatch a call is
for: each name would be traced and compiled anew. JAX's name stack is kept for each equation, through every
transformation, so a mark is a scope of that stack.
"""

from __future__ import annotations

import re
from contextlib import AbstractContextManager
from typing import Any

import jax

from pathways_nb.plan.graph import ActionKey

_MARK = re.compile(r"pw-action-(\d+)-(\d+)(?:-(\d+))?-end")
_NUMBERED = re.compile(r"(\d+[FIWB])\d+(?:\.\d+)?")
"""The name of a node that is an action. No function of Python has such a name, which begins with a digit."""


def marked(key: ActionKey) -> AbstractContextManager[Any]:
    """Return a context in which every computation that is called is this action of a pipeline."""
    token_slice = f"-{key.token_slice}" if key.token_slice >= 0 else ""
    return jax.named_scope(f"pw-action-{key.stage}-{key.microbatch}{token_slice}-end")


def mark_of(name_stack: str) -> ActionKey | None:
    """Return the action that an equation's name stack carries, if any."""
    found = _MARK.search(name_stack)
    return ActionKey(*(int(one) if one else -1 for one in found.groups())) if found else None


def numbered(name: str, key: ActionKey | None) -> str:
    """Return the name of an action's node: ``"2F"`` for microbatch 3 and slice 1 is ``"2F3.1"``."""
    if key is None:
        return name
    return f"{name}{key.microbatch}" + (f".{key.token_slice}" if key.token_slice >= 0 else "")


def unnumbered(name: str) -> str:
    """Return the name that all microbatches of a node share, with which it is compiled."""
    found = _NUMBERED.fullmatch(name)
    return found[1] if found else name
