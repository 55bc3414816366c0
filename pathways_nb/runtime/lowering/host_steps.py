"""Steps at an island's host, compiled: what stands for the host where else a sharding does, and the call of a node."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from pathways_nb.program.build import Code
from pathways_nb.program.items import Const

HostCall = Callable[[Sequence[np.ndarray]], list[np.ndarray]]
"""Runs a host node: takes the values of its inputs, in the order of the step's, and returns its outputs."""


class HostMemory:
    """Where a value lies that is a NumPy array on a host; there is one, ``HOST``."""

    def __repr__(self) -> str:
        return "HOST"

    def __reduce__(self) -> str:
        return "HOST"  # in another process, too, there is one


HOST: Final = HostMemory()


def host_call(code: Code) -> HostCall:
    """Return the call of a host node, of the values that arrive and of its constants."""
    work, (item,) = code.host, code.items
    assert work is not None
    position = {value: at for at, value in enumerate(code.inputs)}
    # (position among the arriving values, constant) of each operand; one of the two is a stand-in.
    operands = [(-1, np.asarray(x.value)) if isinstance(x, Const) else (position[x], None) for x in item.inputs]

    def call(arrays: Sequence[np.ndarray]) -> list[np.ndarray]:
        return work(*(arrays[at] if constant is None else constant for at, constant in operands))

    return call
