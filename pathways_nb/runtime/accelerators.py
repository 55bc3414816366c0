"""Islands of the accelerators that JAX lists: by slice, by host, in equal parts, or as a user's map says.

What a device says of itself is read in ``device_facts``. A TPU's islands are boxes of its grid, and so are the places
in them (``controller.device_grid``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

from pathways_nb.controller.device_grid import Cell, DeviceGrid, in_boxes
from pathways_nb.errors import PlaceError
from pathways_nb.runtime import device_facts as facts
from pathways_nb.runtime.local_islands import Kind, LocalAttachment, LocalIsland
from pathways_nb.util.words import counted

Groups = int | str | Sequence[Sequence[int]] | None
"""How devices are grouped into islands: a number, ``"slice"``, ``"host"``, positions of each island's devices."""


def attach_accelerators(kind: Kind, devices: Sequence[Any], groups: Groups, each: int | None = None) -> LocalAttachment:
    """Group the devices that JAX lists: as the user says, else an island for each slice.

    Args:
        kind: of the devices.
        devices: as JAX lists them; ids need not be dense.
        groups: number of islands, ``"slice"``, ``"host"``, or for each island the positions of its devices.
        each: number of devices of each island; ``None`` leaves it to ``groups``.

    Returns:
        The islands.

    Raises:
        PlaceError: there are not such islands: both numbers are named.
    """
    asked = _asked(kind, groups, each)
    is_map = groups is not None and not isinstance(groups, (int, str))
    if is_map:
        parts = _by_map(asked, devices, groups, each)  # type: ignore[arg-type]
    elif isinstance(groups, str) or (groups is None and each is None):
        parts = _by_key(asked, devices, groups or "slice", each)
    else:
        parts = _equal(asked, kind, devices, groups, each)  # type: ignore[arg-type]
    islands = tuple(_island(kind, at, part, is_map) for at, part in enumerate(parts))
    left = [device.id for device in devices if not any(device in island.devices for island in islands)] if each else []
    note = f"{counted(len(left), 'device')} of {len(devices)} not attached: {_ids(left)}." if left else ""
    return LocalAttachment(kind, islands, note)


def _asked(kind: Kind, groups: Groups, each: int | None) -> str:
    """Return the call as the user made it, for errors."""
    shown = [list(group) for group in groups] if isinstance(groups, (list, tuple)) else groups
    options = {"islands": shown, "devices_per_island": each}
    return f'attach("{kind}"{"".join(f", {name}={value!r}" for name, value in options.items() if value is not None)})'


def _by_map(asked: str, devices: Sequence[Any], groups: Sequence[Sequence[int]], each: int | None) -> list[list[Any]]:
    flat = [position for group in groups for position in group]
    for position in flat:
        if not 0 <= position < len(devices):
            have = counted(len(devices), "device")
            raise PlaceError(f"{asked}: {position} is none of the positions 0 to {len(devices) - 1} of the {have}.")
        if flat.count(position) > 1:
            raise PlaceError(f"{asked}: device {position} is named twice, and a device is part of one island.")
    if not groups or not all(groups):
        raise PlaceError(f"{asked}: every island needs at least one device.")
    if each is not None and any(len(group) != each for group in groups):
        sizes = " + ".join(str(len(group)) for group in groups)
        raise PlaceError(f"{asked}: the map has islands of {sizes} devices. Leave devices_per_island={each} out.")
    return [[devices[p] for p in group] for group in groups]


def _by_key(asked: str, devices: Sequence[Any], key: str, each: int | None = None) -> list[list[Any]]:
    """Return the devices of each slice, or of each host."""
    found: dict[tuple[int, int], list[Any]] = {}
    for device in devices:
        host = facts.host_of(device) if key == "host" else 0
        found.setdefault((facts.slice_index(device), host), []).append(device)
    parts = [found[one] for one in sorted(found)]
    if each is not None and any(len(part) != each for part in parts):
        sizes = " + ".join(str(len(part)) for part in parts)
        raise PlaceError(
            f"{asked}: there {'are' if len(parts) > 1 else 'is'} {counted(len(parts), key)} of {sizes} devices. Leave "
            f"devices_per_island={each} out, or give a number of islands."
        )
    return parts


def _equal(asked: str, kind: Kind, devices: Sequence[Any], count: int | None, each: int | None) -> list[list[Any]]:
    """Return islands of equally many devices, none of which reaches into another slice unless it has whole ones."""
    slices, total = _by_key(asked, devices, "slice"), len(devices)
    several = f" in slices of {' + '.join(str(len(part)) for part in slices)}" if len(slices) > 1 else ""
    have, does = f"{counted(total, 'device')}{several}", "does" if total == 1 else "do"
    if count is not None and count < 1:
        raise PlaceError(f"{asked}: {have} {does} not divide into {count} islands.")
    if each is None:
        assert count is not None
        if len(slices) % count == 0:  # whole slices, joined by the network between them if there are fewer islands
            together = len(slices) // count
            return [list(chain(*slices[at : at + together])) for at in range(0, len(slices), together)]
        if count % len(slices) or any(len(part) * len(slices) % count for part in slices):
            raise PlaceError(f"{asked}: {have} {does} not divide into {count} islands.{_fitting(kind, slices)}")
        pieces = [_cut(kind, part, len(part) * len(slices) // count) for part in slices]
    else:
        if count is not None and count * each > total:
            raise PlaceError(
                f"{asked} needs {count * each} devices, and JAX lists {total} ({_names(devices)})."
                f"{_fitting(kind, slices)}"
            )
        pieces = [_cut(kind, part, each) for part in slices]
        if count is None and sum(map(len, pieces)) * each != total:
            raise PlaceError(f"{asked}: {have} {does} not divide into islands of {each}.{_fitting(kind, slices)}")
    found = [piece for of_slice in pieces for piece in of_slice]
    if count is not None and len(found) < count:
        what = "boxes of the grid" if any(_grid(kind, part) for part in slices) else "islands within a slice"
        raise PlaceError(f"{asked}: {have} have {len(found)} such {what}, not {count}.{_fitting(kind, slices)}")
    return found[:count]


def _cut(kind: Kind, devices: list[Any], each: int) -> list[list[Any]]:
    """Return parts of a slice with so many devices each: boxes where it has a grid."""
    grid = _grid(kind, devices)
    if grid is None:
        return [devices[at : at + each] for at in range(0, len(devices) - each + 1, each)] if each else []
    in_order = _in_boxes(devices, grid)
    return [in_order[first : first + each] for first in grid.firsts(each)]


def _fitting(kind: Kind, slices: Sequence[Sequence[Any]]) -> str:
    """Return a sentence on the sizes that islands may have."""
    grid = _grid(kind, slices[0])
    if grid is not None:
        sizes = list(grid.boxes)
        return (
            f" Aligned boxes of {grid.words} have {', '.join(map(str, sizes))} devices: write "
            f"devices_per_island={sizes[-2] if len(sizes) > 1 else sizes[-1]}, or a map, islands=[[0, 1, …], …]."
        )
    most = len(slices[0])
    sizes = [count for count in range(1, most + 1) if most % count == 0]
    return f" Write devices_per_island={' or '.join(map(str, sizes))}, or a map, islands=[[0, 1, …], …]."


def _island(kind: Kind, index: int, devices: Sequence[Any], is_map: bool) -> LocalIsland:
    grid, name = _grid(kind, devices, is_map), facts.chip_name(devices) if kind != "cpu" else ""
    if grid is not None and not is_map:
        devices = _in_boxes(devices, grid)
    return LocalIsland(index, tuple(devices), grid=grid, chip=name if grid is None or len(devices) < 2 else grid.words)


def _in_boxes(devices: Sequence[Any], grid: DeviceGrid) -> list[Any]:
    """Return the devices of an island in the order of its grid."""
    return [devices[at] for at in in_boxes(_cells(devices) or (), grid.host, grid.by_slice)]


def _grid(kind: Kind, devices: Sequence[Any], is_map: bool = False) -> DeviceGrid | None:
    """Return the grid of an island's devices; ``None`` where any run of them will do."""
    cells = _cells(devices) if kind == "tpu" else None
    if cells is None:
        return None
    host, by_slice = _host_sides(devices, cells), len(set(map(facts.slice_index, devices))) > 1
    order = list(range(len(cells))) if is_map else in_boxes(cells, host, by_slice)
    unit = facts.chip_name(devices) or str(getattr(devices[0], "device_kind", "TPU"))
    return DeviceGrid(tuple(cells[at] for at in order), host, unit, is_map, by_slice)


def _cells(devices: Sequence[Any]) -> list[Cell] | None:
    """Return the cell of each device in its slice's torus, of several slices behind its slice; ``None`` if not told."""
    found = [cell for cell in map(facts.cell_of, devices) if cell is not None]
    if len(found) < len(devices):
        return None
    slices = sorted(set(map(facts.slice_index, devices)))
    if len(slices) > 1:
        found = [(slices.index(facts.slice_index(one)), *cell) for one, cell in zip(devices, found, strict=True)]
    if len(set(found)) < len(found):  # several devices of a chip
        found = [(*cell, facts.core_of(device)) for cell, device in zip(found, devices, strict=True)]
    return found if len(set(found)) == len(found) and len(set(map(len, found))) == 1 else None


def _host_sides(devices: Sequence[Any], cells: Sequence[Cell]) -> Cell:
    """Return the chips of a host along each axis; empty where all devices have one host."""
    hosts = [(facts.slice_index(device), facts.host_of(device)) for device in devices]
    if len(set(hosts)) == 1:
        return ()
    mine = [cell for cell, host in zip(cells, hosts, strict=True) if host == hosts[0]]
    return tuple(max(axis) - min(axis) + 1 for axis in zip(*mine, strict=True))


def _names(devices: Iterable[Any]) -> str:
    kinds = [str(getattr(device, "device_kind", "unknown")) for device in devices]
    return ", ".join(f"{kinds.count(kind)} × {kind}" for kind in dict.fromkeys(kinds))


def _ids(ids: Sequence[int]) -> str:
    return f"id {ids[0]}" if len(ids) == 1 else f"ids {', '.join(map(str, ids))}"
