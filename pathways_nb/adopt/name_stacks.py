"""What JAX's name stack says of an operation: the user's scope that it is in, and the operation itself."""

from __future__ import annotations

import re
from collections.abc import Iterator

from pathways_nb.trace.launch_ops import first_source

_WRAPPED = re.compile(r"^(?:\w+\()+([^()]*)\)+$")
"""A part of a name stack inside transformations, such as ``transpose(jvp(mlp))``."""
_OWN = re.compile(
    r"^(?:jit|pjit|jvp|transpose|vmap|checkpoint|remat|rematted_computation|shard_map|while|body|cond|closed_call)$"
    r"|^branch_|->"
)
"""Parts of a name stack that name no scope of the user's."""
_COUNTER = re.compile(r"[.\d]+$")


def scope_of(source: str) -> str:
    """Return the user's scope of an operation: its name stack without transformations and the operation itself.

    Of operations that the compiler merged, ``a/(b/add:c/mul)``, it is what all are in: ``a``.
    """
    common, merged, _ = source.partition("/(")
    named = f"{common}/" if merged else first_source(source)

    def parts() -> Iterator[str]:
        for part in named.split("/")[1:-1]:
            inside = _WRAPPED.match(part)
            name = inside[1] if inside else part
            # A jitted function has a name of its own, ``jvp(jit(_take))``, which is no scope.
            if name and not _OWN.search(name) and "(" not in name and "jit(" not in part:
                yield name

    return "/".join(parts())


def operation_of(source: str, name: str) -> str:
    """Return what an operation is in JAX's words, such as ``"dot_general"``, else in the compiler's, without number.

    Of operations that the compiler merged, it is the first.

    Args:
        source: its name stack; empty if the text does not say.
        name: of the instruction.
    """
    jax_name = first_source(source).rpartition("/")[2].strip("()") if "/" in source else ""
    return jax_name or _COUNTER.sub("", name)
