"""Virtual slices: what a user asks for before any device is chosen.

A virtual slice (Pathways, section 4.1) is a request for a rectangle of devices with named axes. It belongs to no
controller: the resource manager maps it to devices of the controller that is attached when a computation runs. So the
same program runs on a laptop, a cluster or a simulated pod, and goes on after devices were lost.

A slice is known by its serial number, which a traced computation carries in its name. Serials map to slices by weak
references: a slice lives as long as a user or a trace holds it.
"""

from __future__ import annotations

import itertools
import math
import operator
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, SupportsIndex

from pathways_nb.errors import is_index
from pathways_nb.util.option_names import checked_options
from pathways_nb.util.unique import Unique

_serials = itertools.count()


@dataclass(frozen=True, eq=False)
class VirtualSlice(Unique):
    """A request for ``math.prod(shape)`` devices of one island.

    Args:
        shape: number of devices along each axis.
        axes: a name for each axis, as used in ``pw.P``.
        island: index of the island; ``None`` leaves the choice to the resource manager.
        name: name in figures and errors; if empty, the name of the variable that holds the slice.
        serial: number of the slice in this process.
    """

    shape: tuple[int, ...]
    axes: tuple[str, ...]
    island: int | None = None
    name: str = ""
    serial: int = field(default_factory=lambda: next(_serials))

    def __reduce_ex__(self, protocol: SupportsIndex) -> Any:
        return virtual_slice, (self.shape, self.axes, self.island, self.name)  # unpickled: a new request

    def __post_init__(self) -> None:
        _known[self.serial] = self

    @property
    def size(self) -> int:
        """Number of devices."""
        return math.prod(self.shape)

    @property
    def label(self) -> str:
        """Its name in figures and errors."""
        return self.name or f"slice{self.serial}"

    def take_variable_name(self, variables: Mapping[str, object]) -> None:
        """Take the name of the first variable that holds this slice, unless it has a name.

        Args:
            variables: values by name; names with a leading underscore are left out.
        """
        if not self.name:
            names = [name for name, value in variables.items() if value is self and not name.startswith("_")]
            if names:
                # Frozen, so that a slice can be a key and no user changes it; its name is no part of the request.
                object.__setattr__(self, "name", names[0])

    @property
    def axes_text(self) -> str:
        """Its axes and their sizes, such as ``x=4``."""
        return ", ".join(f"{axis}={size}" for axis, size in zip(self.axes, self.shape, strict=True))

    def __repr__(self) -> str:
        return f"<virtual slice {self.label}: {self.axes_text}>"


_known: weakref.WeakValueDictionary[int, VirtualSlice] = weakref.WeakValueDictionary()


_used: weakref.WeakKeyDictionary[object, VirtualSlice] = weakref.WeakKeyDictionary()


def by_serial(serial: int) -> VirtualSlice:
    """Return the slice with this serial number, which a traced computation's name carries."""
    return _known[serial]


def is_alive(serial: int) -> bool:
    """Return whether anything still holds the slice with this serial number."""
    return serial in _known


def keep_for(jaxpr: object, place: VirtualSlice) -> None:
    """Keep a slice alive as long as a trace that names it: a user's own ``jax.jit`` caches what it traced."""
    _used[jaxpr] = place


@checked_options()
def virtual_slice(
    shape: int | Sequence[int], axes: Sequence[str] | None = None, island: int | None = None, name: str = ""
) -> VirtualSlice:
    """Return a request for devices of one island (Pathways, section 4.1).

    Args:
        shape: number of devices, or one number per axis.
        axes: axis names; by default ``("x",)`` for a single axis, required for more.
        island: index of the island; ``None`` leaves the choice to the resource manager.
        name: name in figures and errors; by default that of the variable that holds the slice.

    Raises:
        ValueError: a size is not a positive whole number, names and sizes do not match, or the name is no text.
    """
    try:
        sizes = tuple(map(operator.index, shape if isinstance(shape, Sequence) else (shape,)))
    except TypeError:
        sizes = ()
    # True would pass as 1 otherwise, since ``operator.index`` takes it.
    if not sizes or min(sizes) < 1 or isinstance(shape, bool):
        raise ValueError(f"virtual_slice(shape={shape!r}): every size must be a whole number of at least 1.")
    if axes is None:
        if len(sizes) > 1:
            raise ValueError(
                f"virtual_slice(shape={shape!r}) has {len(sizes)} axes and no names for them: "
                f'write pw.virtual_slice({sizes}, axes=("data", "model")) with one name per axis.'
            )
        axes = ("x",)
    # One name: a text is a sequence, too, of letters.
    names = (axes,) if isinstance(axes, str) else tuple(axes)
    if len(names) != len(sizes) or len(set(names)) != len(names):
        raise ValueError(
            f"virtual_slice(shape={shape!r}, axes={axes!r}): {len(sizes)} sizes need "
            f"{len(sizes)} different axis names, got {len(names)}: {names}."
        )
    if island is not None and not is_index(island):
        raise ValueError(f"virtual_slice(island={island!r}): the index of an island is needed, such as island=0.")
    if not isinstance(name, str):
        raise ValueError(f'virtual_slice(name={name!r}): the name must be a text, such as name="left".')
    return VirtualSlice(sizes, names, island, name)
