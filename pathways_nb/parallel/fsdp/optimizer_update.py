"""The optimizer's update at the end of a step: what each device computes, moves and exchanges for it.

It is traced once for each step, when its work is first asked for, for whole arrays, and read in the layout of the
optimizer's state: a device updates the part that it keeps. Where parameters are whole on each device and the state is
not (``zero1``), the new parameters are gathered behind it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jax.sharding import PartitionSpec

from pathways_nb.cost.collectives.collective import merged
from pathways_nb.cost.jaxpr.node_work import Work, work_of
from pathways_nb.cost.jaxpr.partial_sums import partial_sums
from pathways_nb.cost.jaxpr.sharded_flat import flatten


class NewParameter(NamedTuple):
    """A parameter that is gathered when its parts are updated.

    Args:
        param: its position.
        bytes: of the whole parameter, or of its part on one device of other axes.
    """

    param: int
    bytes: int


@dataclass(frozen=True, eq=False)
class OptimizerUpdate:
    """The update of one step.

    Args:
        traced: returns the jaxpr of the update of whole arrays.
        specs: the partition of each of its inputs.
        gathers: the parameters that are gathered behind it.
        axis: over which they are.
        parameter_bytes: on a device, of new parameters; 0 where they take over the memory of the old ones.
        state_bytes: on a device, of the new state; 0 likewise.
    """

    traced: Callable[[], Any]
    specs: Sequence[PartitionSpec]
    gathers: tuple[NewParameter, ...] = ()
    axis: str = ""
    parameter_bytes: int = 0
    state_bytes: int = 0

    def work(self, sizes: Mapping[str, int]) -> Work:
        """Return the work of one device.

        Args:
            sizes: axes of the place and their sizes.
        """
        # Such as the norm of all gradients, of which each device has a part.
        jaxpr = self.traced()
        sums = partial_sums(flatten(jaxpr, sizes, self.specs)).values()
        return work_of(jaxpr, sizes, self.specs) + Work(collectives=merged(one for found in sums for one in found))
