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

from pathways_nb.errors import PlaceError, UsageError
from pathways_nb.runtime import local_islands
from pathways_nb.runtime.local.local_driver import LocalDriver
from pathways_nb.runtime.lowering.executables import Executables
from pathways_nb.session.attach_options import AttachOptions
from pathways_nb.session.controller_handle import Controller
from pathways_nb.session.session import Session
from pathways_nb.util import limits
from pathways_nb.util.json_text import shortened

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
    kind = asked.kind if asked.kind == "cpu" else _choose(asked.kind, local_islands.accelerators()[0])
    islands, each = asked.islands, asked.devices_per_island
    if kind == "cpu" and (isinstance(islands, str) or not isinstance(islands, Sequence)):
        islands, each = _virtual(2 if islands is None else islands, 4 if each is None else each)
    elif kind == "cpu" and each is not None:
        raise PlaceError(
            f"attach(islands={shortened(islands)}, devices_per_island={shortened(each)}): a list says which of JAX's "
            f"own CPU devices each island has; leave devices_per_island out."
        )
    return replace(asked, kind=kind, islands=_hashable(islands), devices_per_island=each)


def controller(attach_options: AttachOptions) -> Controller:
    """Return a new controller on devices of this process.

    Args:
        attach_options: the options, spelled out.

    Raises:
        PlaceError: the islands do not fit the accelerators that JAX lists.
    """
    if attach_options.kind != "cpu" or isinstance(attach_options.islands, tuple):
        kind, devices = local_islands.listed(attach_options.kind)  # type: ignore[arg-type]  # checked by attach
        attachment = local_islands.attach_accelerators(kind, devices, attach_options.islands)
        counts = tuple(len(island.devices) for island in attachment.islands)
        hbm = [int(attach_options.hbm or local_islands.capacity(island)) for island in attachment.islands]
        return Controller(attach_options, lambda c: _local(c, attachment), counts, tuple(hbm))
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
    latency = session.attach_options.dcn_latency
    return LocalDriver(attachment, session.machine, session.clock, executables, session.note, latency)


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
            f'Use pw.attach("{found or "cpu"}") or pw.attach("auto").'
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


def _hashable(islands: Any) -> Any:
    """Return ``islands`` with lists as tuples, so that options can be compared with those attached before.

    Raises:
        PlaceError: it is neither a whole number nor a list of lists of device positions.
    """
    if islands is None or isinstance(islands, int):
        return islands
    try:
        return tuple(tuple(map(operator.index, group)) for group in islands)
    except TypeError:
        raise PlaceError(
            f"attach(islands={islands!r}): give a whole number, or on accelerators a list of device positions each."
        ) from None
