"""Groups of devices as XLA writes them, and the axes of a mesh that they follow.

XLA has three forms: every id, ``{{0,1},{2,3}}``; an array of ids, reshaped and transposed, ``[2,2]<=[2,2]T(1,0)``; and
axes of a mesh of XLA's own, ``mesh['a'=2,'b'=4] {'b'}``, an axis possibly in part, ``'b':(2)2``. Ids are positions in
the mesh of the program, row by row. All three become one array of ids, in which the axes are found.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence

import numpy as np

_LISTED = re.compile(r"replica_groups=(\{\{.*?\}\}|\{\})")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(r"replica_groups=mesh\[([^\]]*)\]([^{]*)\{([^}]*)\}")
_PAIRS = re.compile(r"source_target_pairs=(\{\{.*?\}\}|\{\})")
_PART = re.compile(r"'([^']+)'(?::\((\d+)\)(\d+))?")


def groups_of(attributes: str, devices: int) -> np.ndarray:
    """Return the groups that an instruction's attributes name, one a row; the pairs of a permutation likewise.

    Args:
        attributes: text of the attributes.
        devices: number of devices of the program, which are one group where none is named.

    Raises:
        ValueError: groups written in none of the three forms.
    """
    listed = _LISTED.search(attributes) or _PAIRS.search(attributes)
    if listed:
        rows = [_numbers(row) for row in re.findall(r"\{([\d,\s]+)\}", listed[1])]
        # ``{}`` means all devices together.
        return np.array(rows) if rows else np.arange(devices).reshape(1, -1)
    iota = _IOTA.search(attributes)
    if iota:
        return _reordered(iota[2], iota[3]).reshape(_numbers(iota[1]))
    mesh = _MESH.search(attributes)
    if mesh:
        return _along_axes(mesh[1], mesh[2], mesh[3])
    if "replica_groups=" in attributes or "source_target_pairs=" in attributes:
        raise ValueError(f"Groups of devices written in a way that is not known: {attributes[:160]!r}.")
    return np.arange(devices).reshape(1, -1)


def axes_of(groups: np.ndarray, sizes: Mapping[str, int], *, pairs: bool = False) -> tuple[str, ...]:
    """Return the mesh axes along which the devices of each group differ; none if groups are no whole lines of them.

    Args:
        groups: ids, one group a row.
        sizes: of the mesh's axes, in its order.
        pairs: whether rows are source and target of a permutation, which need not span an axis.
    """
    # (groups, members, axes of the mesh)
    coordinates = np.stack(np.unravel_index(groups, tuple(sizes.values())), axis=-1)
    # An axis belongs to the groups if the members of any group differ from its first along it.
    differs = (coordinates != coordinates[:, :1]).any(axis=(0, 1))
    axes = tuple(axis for axis, along in zip(sizes, differs, strict=True) if along)
    # Fewer members than the axes have devices: groups that follow only parts of axes, or no axis.
    return axes if pairs or groups.shape[1] == math.prod(sizes[axis] for axis in axes) else ()


def _numbers(text: str) -> list[int]:
    """Return the numbers of a text with commas between them."""
    return [int(number) for number in text.split(",")]


def _reordered(shape: str, order: str | None) -> np.ndarray:
    """Return ids of an array of this shape, its dimensions in the given order."""
    dims = _numbers(shape)
    ids = np.arange(math.prod(dims)).reshape(dims)
    return ids.transpose(_numbers(order)) if order else ids


def _along_axes(declared: str, ids: str, chosen: str) -> np.ndarray:
    """Return the groups along axes, or parts of axes, of a mesh that is written out.

    Args:
        declared: axes with their sizes.
        ids: order of the device ids in the mesh.
        chosen: axes, or parts of axes, that the groups go along.
    """
    sizes = {name: int(size) for name, size in re.findall(r"'([^']+)'=(\d+)", declared)}
    parts = [(name, int(before or 1), int(size or sizes[name])) for name, before, size in _PART.findall(chosen)]
    dims, picked = [], []
    for axis, size in sizes.items():
        # ``'b':(2)2`` is the part of size 2 of axis b with a part of size 2 before it: dimensions of a reshaped axis.
        cuts = sorted((before, part) for name, before, part in parts if name == axis)
        done = 1
        for before, part in cuts:
            dims += [before // done, part]
            picked.append(len(dims) - 1)
            done = before * part
        dims.append(size // done)
    # Dimensions that are not picked number the groups, those that are picked the members.
    others = [i for i in range(len(dims)) if i not in picked]
    return _device_ids(ids, dims).transpose([*others, *picked]).reshape(-1, math.prod(dims[i] for i in picked))


def _device_ids(text: str, dims: Sequence[int]) -> np.ndarray:
    """Return the device ids of a mesh, split into parts of axes."""
    iota = re.search(r"\[([\d,]+)\](?:T\(([\d,]+)\))?", text)
    if iota and "<=" not in text and iota[2] is None:
        return np.arange(math.prod(dims)).reshape(dims)
    given = re.search(r"<=\[([\d,]+)\](?:T\(([\d,]+)\))?", text) or iota
    ids = _reordered(given[1], given[2]) if given else np.arange(math.prod(dims))
    return ids.reshape(dims)
