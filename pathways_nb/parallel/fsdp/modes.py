"""The modes of sharded data parallelism: what is kept in shards between steps (ZeRO, arXiv 1910.02054).

| mode | parameters | gradients | optimizer state | exchanged |
|---|---|---|---|---|
| ddp | whole | whole | whole | all-reduce of gradients |
| zero1 | whole | whole | sharded | all-reduce of gradients, all-gather of new parameters |
| zero2 | sharded | sharded | sharded | all-gather of parameters, once; reduce-scatter of gradients |
| zero3 | sharded | sharded | sharded | the same, with parameters gathered again for the backward pass |
| hsdp | zero3 within the second axis | | | and all-reduce of gradients over the first axis |
"""

from __future__ import annotations

from dataclasses import dataclass

from pathways_nb.errors import UsageError, did_you_mean, is_index
from pathways_nb.parallel.fsdp.collectives import DataAxes
from pathways_nb.plan.virtual_slice import VirtualSlice, virtual_slice
from pathways_nb.util.words import a_type_of, counted

MODES = ("ddp", "zero1", "zero2", "zero3", "hsdp")


@dataclass(frozen=True)
class Mode:
    """A mode on a place.

    Args:
        name: one of ``MODES``.
        axes: the axes over which the batch is split.
    """

    name: str
    axes: DataAxes

    @property
    def shards_parameters(self) -> bool:
        """Whether parameters and gradients are kept in shards."""
        return self.name in ("zero2", "zero3", "hsdp")

    @property
    def shards_state(self) -> bool:
        """Whether the optimizer's state is kept in shards."""
        return self.name != "ddp"

    @property
    def gathers_again(self) -> bool:
        """Whether parameters are gathered again for the backward pass."""
        return self.name in ("zero3", "hsdp")


def mode_of(name: str, on: VirtualSlice, axis: str | None) -> Mode:
    """Return a mode on a place.

    Args:
        name: of the mode.
        on: the place.
        axis: the axis that splits the batch; by default the first. Other axes are left to the compiler.

    Raises:
        UsageError: there is no such mode or axis, or the place has too few axes.
    """
    if not isinstance(on, VirtualSlice):
        raise UsageError(f"fsdp: on={on!r} is {a_type_of(on)}; pass a pw.virtual_slice(...).")
    if name not in MODES:
        raise UsageError(f"fsdp: there is no mode {name!r}; modes are {', '.join(MODES)}.{did_you_mean(name, MODES)}")
    sizes = dict(zip(on.axes, on.shape, strict=True))
    if name == "hsdp":
        return Mode(name, _hybrid(on, axis, sizes))
    chosen = on.axes[0] if axis is None else axis
    if chosen not in sizes:
        raise UsageError(f"fsdp: the place {on.label} has no axis {chosen!r}; its axes are {on.axes_text}.")
    return Mode(name, DataAxes((chosen, sizes[chosen])))


def _hybrid(on: VirtualSlice, axis: str | None, sizes: dict[str, int]) -> DataAxes:
    if len(on.axes) < 2:
        raise UsageError(
            f'fsdp: mode "hsdp" needs a place of two axes, of which the first replicates and the second shards; '
            f"{on.label} has {counted(len(on.axes), 'axis', 'axes')} ({on.axes_text}). Take "
            f'pw.virtual_slice((2, {on.size // 2 or 1}), axes=("replicate", "shard")).'
        )
    if axis is not None:
        raise UsageError(f'fsdp: axis={axis!r} has no meaning with mode "hsdp", which uses the first two axes.')
    replicate, shard = on.axes[:2]
    return DataAxes((shard, sizes[shard]), (replicate, sizes[replicate]))


def elsewhere(on: VirtualSlice, mode: Mode, name: str, devices: int) -> tuple[VirtualSlice, Mode]:
    """Return a place for a mode on another number of devices, and the mode there; ``on`` itself if it fits.

    Args:
        on: the place of a step.
        mode: the mode of that step.
        name: of the mode to have.
        devices: number of devices that split the batch.

    Raises:
        UsageError: as for ``mode_of``, or the number of devices is no multiple of the replicas.
    """
    if not is_index(devices) or devices < 1:
        raise UsageError(f"fsdp: devices={devices!r}: a positive whole number is needed.")
    # The same axes with other sizes: programs and specs name axes, so they stay what they are.
    sizes, (shard, _) = dict(zip(on.axes, on.shape, strict=True)), mode.axes.shard
    if name == "hsdp":
        axes = _hybrid(on, None, sizes)
        (shard, _), (replicate, replicas) = axes.shard, axes.replicate or ("", 1)
        if devices % replicas:
            raise UsageError(
                f'fsdp: mode "hsdp" with {replicas} replicas ({replicate}={replicas}) splits parameters over equal '
                f"parts of the devices, and {devices} devices are no multiple of {replicas}."
            )
        sizes[shard] = devices // replicas
    else:
        if mode.axes.replicate is not None:  # out of hybrid sharding: all devices are on the one axis
            del sizes[mode.axes.replicate[0]]
        sizes[shard] = devices
    if sizes != dict(zip(on.axes, on.shape, strict=True)):
        on = virtual_slice(tuple(sizes.values()), tuple(sizes), name=on.name)
    return on, mode_of(name, on, None if name == "hsdp" else shard)
