"""``pw.attach`` on the devices of this process: virtual CPU devices, or the accelerators that JAX lists.

CPU devices and their driver are made when first needed. Simulated devices are in ``simulator``, hosts of a Ray cluster
in ``ray_attach``.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from pathways_nb.errors import PlaceError, UsageError, is_index
from pathways_nb.runtime import accelerators, device_facts, local_islands
from pathways_nb.runtime.local.local_driver import LocalDriver
from pathways_nb.runtime.local.loss_watch import LossWatch
from pathways_nb.runtime.lowering.executables import Executables
from pathways_nb.session import elasticity
from pathways_nb.session.attach_options import AttachOptions
from pathways_nb.session.controller_handle import Controller
from pathways_nb.session.session import Session
from pathways_nb.util import limits
from pathways_nb.util.json_text import shortened
from pathways_nb.util.progress import tell_reader

# Shared by all controllers of the process: attaching other devices and coming back compiles nothing again.
executables = Executables(time.perf_counter)


def spelled_out(asked: AttachOptions) -> AttachOptions:
    """Return the options with the kind and the counts of virtual devices given, so that equal requests compare equal.

    Args:
        asked: as given to ``pw.attach``, with ``"auto"`` for the kind if it is to be chosen here.

    Raises:
        PlaceError: the numbers are no counts, or so many virtual devices cannot be made.
        UsageError: a GPU or TPU is asked for that JAX does not list.
    """
    # Asking JAX for its devices starts all its backends, which islands of CPU devices do not need.
    kind = asked.kind if asked.kind == "cpu" else _choose(asked.kind, device_facts.found_devices()[0])
    islands, each = asked.islands, asked.devices_per_island
    if kind != "cpu":
        counts = {"islands": None if hasattr(islands, "__iter__") else islands, "devices_per_island": each}
        limits.check_counts("attach", **{name: count for name, count in counts.items() if count is not None})
    if kind == "cpu" and (isinstance(islands, str) or not isinstance(islands, Sequence)):
        islands, each = _virtual(2 if islands is None else islands, 4 if each is None else each)
    elif kind == "cpu" and each is not None:
        raise PlaceError(
            f"attach(islands={shortened(islands)}, devices_per_island={shortened(each)}): a list says which of JAX's "
            f"own CPU devices each island has; leave devices_per_island out."
        )
    return replace(asked, kind=kind, islands=_hashable(kind, islands), devices_per_island=each)


def controller(attach_options: AttachOptions) -> Controller:
    """Return a new controller on devices of this process.

    Args:
        attach_options: the options, spelled out.

    Raises:
        PlaceError: the islands do not fit the accelerators that JAX lists.
    """
    if attach_options.kind != "cpu" or isinstance(attach_options.islands, tuple):
        kind, devices = device_facts.listed(attach_options.kind)  # type: ignore[arg-type]  # checked by attach
        groups, each = attach_options.islands, attach_options.devices_per_island
        attachment = accelerators.attach_accelerators(kind, devices, groups, each)
        counts = tuple(len(island.devices) for island in attachment.islands)
        if kind == "cpu" or attach_options.hbm:
            hbm = (int(attach_options.hbm or 0),) * len(counts)
        else:
            hbm = tuple(device_facts.capacity_of(island.devices) for island in attachment.islands)
            notes = attachment.note, device_facts.memory_note(attachment.islands[0].devices, hbm[0])
            attachment = replace(attachment, note="\n".join(filter(None, notes)))
        grids = [island.grid for island in attachment.islands]
        return Controller(attach_options, lambda c: _local(c, attachment), counts, hbm, grids=grids)
    count, each = attach_options.islands, attach_options.devices_per_island or 0
    # 0 means no budget: virtual CPU devices report no memory of their own.
    budgets = (int(attach_options.hbm or 0),) * count

    def start(session: Session) -> LocalDriver:
        """Return the driver, with CPU clients made for it; called when the driver is first needed."""
        return _local(session, local_islands.attach_cpu(count, each, attach_options.pin))

    return Controller(attach_options, start, (each,) * count, budgets)


def other_choice(kind: str) -> str:
    """Return what ``"auto"`` prints when it has chosen ``kind``: how to attach what it did not take."""
    if kind == "cpu":
        return 'for other numbers: pw.attach("cpu", islands=2, devices_per_island=8)'
    return 'for virtual CPU devices: pw.attach("cpu")'


def _local(session: Session, attachment: local_islands.LocalAttachment) -> LocalDriver:
    """Return the driver that runs a session's instructions on the devices of ``attachment``."""
    asked = session.attach_options
    latency, is_own = asked.dcn_latency, attachment.kind != "cpu"
    losses = _watch(session, attachment) if is_own else None
    return LocalDriver(
        attachment, session.machine, session.clock, executables, session.note, latency, is_own and not asked.hbm, losses
    )


def _watch(session: Session, attachment: local_islands.LocalAttachment) -> LossWatch:
    """Return what asks accelerators that may be lost: a loss removes them, and an answer gives them back."""
    devices = [island.devices for island in attachment.islands]

    def lose(island: int, why: str) -> None:
        elasticity.lose(session, island)
        executables.forget(devices[island])
        tell_reader(
            f"island {island} is lost ({why}): its places move to other islands, or wait for "
            f"controller.add(island={island}). It comes back by itself when its devices answer."
        )

    def give_back(island: int) -> None:
        if any(where.island == island for where in session.resources.lost):  # else somebody has given it back
            elasticity.give_back(session, island)
            tell_reader(f"island {island} is back: its devices answer, and hold nothing.")

    return LossWatch(devices, lose, give_back)


def _choose(kind: str, found: str | None) -> str:
    """Return the kind of devices to attach: ``kind`` itself, or for ``"auto"`` the accelerator found, else ``"cpu"``.

    Raises:
        UsageError: a GPU or TPU is asked for that JAX does not list.
    """
    if kind == "auto":
        return found or "cpu"
    if kind in ("gpu", "tpu") and found != kind:
        raise UsageError(
            f'attach("{kind}"): JAX sees {"no accelerator" if found is None else f"a {found}"} here. '
            f'Use pw.attach("{found or "cpu"}") or pw.attach("auto").{device_facts.why_none(kind)}'
        )
    return kind


def _virtual(islands: Any, each: Any) -> tuple[int, int]:
    """Return the numbers of CPU islands and of devices on each as plain integers.

    Raises:
        PlaceError: they are no counts, or so many virtual devices cannot be made.
    """
    limits.check_counts("attach", islands=islands, devices_per_island=each)
    islands, each = operator.index(islands), operator.index(each)
    asked = f"attach(islands={shortened(islands)}, devices_per_island={shortened(each)})"
    limits.check_virtual(asked, islands, islands * each)
    return islands, each


def _hashable(kind: str, islands: Any) -> Any:
    """Return ``islands`` with lists as tuples, so that options can be compared with those attached before.

    Devices are named by their positions among those that JAX lists.

    Raises:
        PlaceError: it is neither a whole number, ``"slice"``, ``"host"`` nor a list of lists of devices.
    """
    if islands is None or (isinstance(islands, str) and islands in ("slice", "host") and kind != "cpu"):
        return islands
    if is_index(islands):
        return operator.index(islands)
    try:
        if isinstance(islands, str):
            raise TypeError
        groups = [list(group) for group in islands]
        numbered = all(is_index(one) for group in groups for one in group)
        every = [] if numbered else device_facts.listed(kind)[1]  # type: ignore[arg-type]
        return tuple(tuple(_position(islands, one, every) for one in group) for group in groups)
    except TypeError:
        raise PlaceError(
            f"attach(islands={islands!r}): give a whole number, or on accelerators a list of device positions each, or "
            f'"slice" or "host" for an island of each of those.'
        ) from None


def _position(islands: Any, device: Any, every: Sequence[Any]) -> int:
    """Return the position of a device, which is named by it or by itself.

    Raises:
        PlaceError: JAX does not list it.
        TypeError: it is neither.
    """
    if not hasattr(device, "device_kind"):
        if not is_index(device):
            raise TypeError
        return operator.index(device)
    if device not in every:
        raise PlaceError(f"attach(islands={islands!r}): {device!r} is none of the {len(every)} devices that JAX lists.")
    return every.index(device)
