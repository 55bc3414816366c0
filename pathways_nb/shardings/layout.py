"""Which device holds which block of an array: the numbers, the text and the picture's input."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from jax.sharding import NamedSharding

from pathways_nb.errors import size
from pathways_nb.plan.plan import Placement
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program.specs import axes_of, show, trimmed
from pathways_nb.runtime.lowering.pieces import Shards, volume
from pathways_nb.shardings.blocks import Blocks, numbers
from pathways_nb.util.displaying import ShowsItself
from pathways_nb.util.words import counted

_LISTED = 8
"""Blocks that the text lists one by one."""
UNEVEN = "JAX takes no uneven array, argument or result; inside a computation it pads them, or refuses them too"
PADDED = "padding is memory behind the array, which no shape and no read shows"


@dataclass(frozen=True, eq=False)
class Seat:
    """A sharding and its devices.

    Args:
        sharding: of JAX.
        place: what holds the array, in words, such as ``"left: x=4"``.
        devices: in the order of the mesh; equal ones in two seats are the same device.
        numbers: of the devices, as shown.
        where: island and devices; ``None`` if they are not chosen.
        slice_: the virtual slice with the axes of the sharding; ``None`` if it has no axes.
    """

    sharding: Any
    place: str
    devices: Sequence[Hashable]
    numbers: Sequence[int]
    where: Placement | None = None
    slice_: VirtualSlice | None = None


@dataclass(frozen=True, eq=False, repr=False)
class Layout(ShowsItself):
    """Which device holds which block of an array: what ``pw.show_sharding`` returns.

    Its text says what each device holds; ``show`` and ``savefig`` draw it.

    Args:
        shape: of the whole array.
        dtype: name of its type.
        itemsize: bytes of an element.
        spec: the sharding in words, such as ``"P('x', None)"``.
        place: what holds the array, such as ``"left: x=4"``.
        where: island and devices; ``None`` if they are not chosen.
        axes: the mesh axes that split each dimension.
        numbers: number of each device.
        shards: index range of each device.
        padded: whether it is kept with padding where its devices do not divide it, as ``pw.fsdp`` keeps parameters.
    """

    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    spec: str
    place: str
    where: Placement | None
    axes: tuple[tuple[str, ...], ...]
    numbers: Sequence[int]
    shards: Shards = field(repr=False)
    padded: bool = False

    @classmethod
    def of(cls, shape: tuple[int, ...], dtype: Any, seat: Seat, padded: bool = False) -> Layout:
        """Return the layout of an array.

        Args:
            shape: of the array.
            dtype: its type.
            seat: its sharding and devices.
            padded: whether it is kept with padding.
        """
        spec = seat.sharding.spec if isinstance(seat.sharding, NamedSharding) else ()
        words = show(trimmed(spec)) if isinstance(seat.sharding, NamedSharding) else type(seat.sharding).__name__
        # A spec need not name the last dimensions if they are not split.
        axes = tuple(axes_of(entry) for entry in spec) + ((),) * (len(shape) - len(spec))
        shards = Shards.of(seat.sharding, shape, seat.devices)
        return cls(shape, str(dtype), dtype.itemsize, words, seat.place, seat.where, axes, seat.numbers, shards, padded)

    @cached_property
    def blocks(self) -> Blocks:
        """The blocks of the array, and which devices hold each."""
        return Blocks.of(self.shards)

    @property
    def block_shape(self) -> tuple[int, ...]:
        """Shape of the block that a device holds; of the largest one if they differ."""
        return self.blocks.shape

    @property
    def copies(self) -> int:
        """Number of devices that hold each block; the most if they differ."""
        return self.blocks.copies[1]

    @property
    def bytes(self) -> int:
        """Bytes of the whole array, once."""
        return self.itemsize * math.prod(self.shape)

    @property
    def bytes_per_device(self) -> int:
        """Bytes that a device holds; of the largest block if they differ."""
        return self.itemsize * math.prod(self.block_shape)

    @property
    def devices(self) -> Sequence[Hashable]:
        """The devices, in the order of the mesh."""
        return self.shards.devices

    @property
    def array(self) -> str:
        """Type, shape and size of the array."""
        return f"{self.dtype}[{','.join(map(str, self.shape))}], {size(self.bytes)}"

    @property
    def heading(self) -> str:
        """What lies where, in one line."""
        return f"{self.array}, as {self.spec} on {self.place}" + (f" ({self.where})" if self.where else "")

    @cached_property
    def lines(self) -> list[str]:
        """What each device holds, and what is uneven."""
        few, most = self.blocks.copies
        copies = counted(few, "device") if few == most else f"{few} to {most} devices"
        holds = f"a block of {times(self.block_shape)}, {size(self.bytes_per_device)}"
        each = f"{counted(len(self.devices), 'device')}, each with {holds}"
        if len(self.devices) == 1:
            each = f"1 device with {holds}"
        number = len(self.blocks.holders)
        return [f"{each}; {counted(number, 'block')}, {'each on' if number > 1 else 'on'} {copies}", *self._uneven]

    @property
    def _uneven(self) -> list[str]:
        """The lines about dimensions that their devices do not divide; none if all do."""
        if self.blocks.is_even:
            return []
        found = []
        for dimension, (parts, each) in enumerate(zip(self.blocks.ranges, self.block_shape, strict=True)):
            if self.padded:
                found += self._padding(dimension)
                continue
            rest = sorted({high - low for low, high in parts} - {each}, reverse=True)
            if rest:
                names = " × ".join(map(repr, self.axes[dimension]))
                last = " and ".join(str(length) if length else "nothing" for length in rest)
                uneven = (
                    f"dimension {dimension} of size {self.shape[dimension]} is not divisible by the devices of {names}"
                )
                found.append(f"{uneven}: parts of {each}, at its end {last}")
        return [*found, PADDED if self.padded else UNEVEN]

    def _padding(self, dimension: int) -> list[str]:
        """Return the line on how much of a dimension each device has, and how much padding; none if all have alike."""
        parts, each = self.blocks.ranges[dimension], self.block_shape[dimension]
        lengths = Counter(high - low for low, high in parts)
        if len(lengths) == 1:
            return []
        has = []
        for length, count in sorted(lengths.items(), reverse=True):
            pads = f" and {each - length} of padding" if length < each else ""
            # A part is held by as many devices as every other one.
            has.append(f"{length}{pads} on {counted(count * len(self.devices) // len(parts), 'device')}")
        return [f"dimension {dimension} of size {self.shape[dimension]}: {', '.join(has)}"]

    def dimension(self, number: int) -> str:
        """Return how one dimension is split, in words."""
        length, parts = self.shape[number], self.blocks.ranges[number]
        if len(parts) == 1:
            return f"dim {number}: {length}, not split"
        by = f" by {' × '.join(self.axes[number])}" if self.axes[number] else ""
        # Parts behind the end of the array are empty.
        full = sum(low < high for low, high in parts)
        return f"dim {number}: {length} in {counted(full, 'part')} of {self.block_shape[number]}{by}"

    def index(self, block: tuple[int, ...]) -> str:
        """Return the index range of a block, such as ``"[0:2, :]"``."""
        box = zip(self.blocks.box(block), self.shape, strict=True)
        return f"[{', '.join(':' if part == (0, n) else f'{part[0]}:{part[1]}' for part, n in box)}]"

    def device_numbers(self, positions: Sequence[int], most: int = 4) -> str:
        """Return the numbers of the devices at these positions; see ``blocks.numbers``."""
        return numbers(sorted(self.numbers[position] for position in positions), most)

    def bytes_of(self, block: tuple[int, ...]) -> int:
        """Return the bytes of one block."""
        return self.itemsize * volume(self.blocks.box(block))

    def show(self) -> None:
        """Draw it in the notebook; a script prints the text."""
        from pathways_widgets.shardings.sharding_display import show as show_picture

        show_picture(self)

    def savefig(self, path: str | Path, width: str | float = 900) -> None:
        """Write the picture to a file.

        Args:
            path: file name that ends in ``.svg`` or ``.png``.
            width: of the picture, as for ``Run.savefig``.
        """
        from pathways_widgets.shardings.sharding_display import write

        write(self, path, width)

    def _listed(self) -> Iterator[str]:
        """Yield a line for each of the first blocks."""
        for block, held in list(self.blocks.holders.items())[:_LISTED]:
            yield f"  {self.index(block)} on dev {self.device_numbers(held)}"
        if (more := len(self.blocks.holders) - _LISTED) > 0:
            yield f"  … and {counted(more, 'more block')}"

    def __repr__(self) -> str:
        return "\n".join([self.heading, *self.lines, *self._listed()])


def times(shape: Sequence[int]) -> str:
    """Return a shape as text: ``"2 × 4"``; a scalar is ``"1 element"``."""
    return " × ".join(map(str, shape)) or "1 element"
