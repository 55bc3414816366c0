"""Runs the text of a program with ``pathways_nb`` and in plain JAX, and compares the results."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax

import pathways_nb as pw
from tests.jax.any_places import bodies, plain
from tests.support.closeness import close

TOLERANCE = 2e-3
"""Of float32 results, relative to the largest number of each."""


class InvalidError(Exception):
    """The text is no good in plain JAX either: the fault is in what wrote it."""


class Session:
    """Runs texts with one library. What their first lines define is defined once, as in one session of a user's."""

    def __init__(self, library: Any, constrain: Any, raw: Callable[[Any], Any]):
        self.names: dict[str, Any] = {
            **vars(bodies), **arguments(), "pw": library, "constrain": constrain, "pairs": _pairs,
            "raw": raw, "jax": jax, "jnp": jnp, "np": np, "optax": optax,
        }  # fmt: skip
        self.defined: dict[str, Any] = {}

    def result_of(self, text: str) -> Any:
        """What the text leaves in ``result``, as NumPy arrays."""
        head, _, rest = text.partition("\n\n\n")
        names, ours = dict(self.names), dict[str, Any]()
        for block in re.split(r"\n(?=\w+ = |def )", head):  # a function has several lines
            name = block.removeprefix("def ").partition(" = ")[0].partition("(")[0]
            of = [id(ours[other]) for other in re.findall(r"\w+", block) if other in ours]
            key = f"{block} # {of}"
            if key not in self.defined:
                exec(block, names)
                self.defined[key] = names[name]
            names[name] = ours[name] = self.defined[key]
        variables = dict(names)  # those of what is defined, which is kept, must hold no value
        exec(compile(rest, "<random program>", "exec"), variables)
        return jax.tree.map(np.asarray, variables["result"])


def arguments() -> dict[str, np.ndarray]:
    """The matrices that every program begins with."""
    values = np.random.default_rng(7)
    return {name: values.normal(0, 0.6, (bodies.N, bodies.N)).astype(np.float32) for name in "xyz"}


def _pairs(*values: Any) -> tuple[Any, ...]:
    return tuple(jnp.stack([value, value * 0.5]) for value in values)


class Check:
    """Compares programs on the devices of the current controller with plain JAX."""

    def __init__(self) -> None:
        self.here = Session(pw, jax.lax.with_sharding_constraint, pw.Future.array)
        self.there = Session(plain, plain.constrain, lambda value: value)

    def __call__(self, text: str) -> None:
        """Run the text both ways.

        Raises:
            InvalidError: it is no program.
            AssertionError: the results differ; or whatever the program itself raises.
        """
        try:
            expected = self.there.result_of(text)
        except Exception as error:
            raise InvalidError(f"in plain JAX: {error}") from error
        if not all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(expected)):
            raise InvalidError("the result in plain JAX is not finite")
        found = self.here.result_of(text)
        close(found, expected, TOLERANCE, least=5e-4)
