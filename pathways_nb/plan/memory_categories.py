"""What memory is held for: the categories by which the memory of a device is divided.

The first five are declared by a program, since nobody else knows that an array is a parameter (``pw.put(category=)``,
``pw.program(categories=)``). The others are known without it. Words are those of ZeRO (Rajbhandari et al., 2020) and
of XLA's memory analysis.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from pathways_nb.errors import UsageError, nearest

PARAMETERS, OPTIMIZER, GRADIENTS = "parameters", "optimizer", "gradients"
GATHERED, ACTIVATIONS = "gathered", "activations"
VALUES = "values"
"""Arrays that a client put onto devices."""
ARGUMENTS = "arguments"
"""Arguments that a call brings to the devices where they are needed, until it ends."""
RESULTS = "results"
"""Results of calls, until they are dropped."""
INTERMEDIATES = "intermediates"
"""What passes from one node of a call to another."""
TEMPORARIES = "temporaries"
"""What XLA needs inside one launch beyond its inputs and outputs."""

DECLARED = (PARAMETERS, OPTIMIZER, GRADIENTS, GATHERED, ACTIVATIONS)
CATEGORIES = (
    *(PARAMETERS, OPTIMIZER, GRADIENTS, VALUES, RESULTS),
    *(ARGUMENTS, GATHERED, ACTIVATIONS, INTERMEDIATES, TEMPORARIES),
)
"""All of them, from what stays longest to what stays shortest: the order in which pictures stack them."""
Parts = Mapping[str, int]
"""Bytes by category."""


def check(category: str, said: str) -> str:
    """Return a category that is known.

    Args:
        category: the word.
        said: how the user gave it, for the error.

    Raises:
        UsageError: it is no category; the nearest one is named.
    """
    if category not in CATEGORIES:
        near = nearest(category, CATEGORIES) if isinstance(category, str) else []
        meant = f"; did you mean {near[0]!r}?" if near else ""
        raise UsageError(f"{said}: there is no such category of memory; choose from {', '.join(CATEGORIES)}{meant}")
    return category


def category_of(path: str, declared: Mapping[str, str]) -> str | None:
    """Return what is declared for a path such as ``"params['w']"``, or for the nearest path above it.

    Args:
        path: of an argument or a result.
        declared: categories by path.
    """
    # Only a bracket or a dot goes deeper: "w" is not above "weights".
    above = [known for known in declared if path == known or path.startswith((f"{known}[", f"{known}."))]
    return declared[max(above, key=len)] if above else None


def in_order(names: Iterable[str]) -> list[str]:
    """Return categories in the order of ``CATEGORIES``; what an older file does not say comes last."""
    rank = {name: number for number, name in enumerate(CATEGORIES)}
    return sorted(names, key=lambda name: rank.get(name, len(rank)))
