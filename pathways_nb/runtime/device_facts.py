"""The devices that JAX lists, and what each says of itself: GPUs, TPUs, and the devices of Pathways on Cloud.

What a device says of itself differs from backend to backend, and is read here only. Ids may have gaps, any attribute
may be missing, ``memory_stats`` may raise, and Pathways' proxy may call its platform ``proxy`` or ``tpu``. Sizes and
names that a device does not tell come from the one table of chips (``cost.hardware``), from which the devices that are
only compiled for have theirs.
"""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Sequence
from typing import Any

import jax

from pathways_nb.compilers.targets import chip_of_kind
from pathways_nb.controller.device_grid import Cell
from pathways_nb.errors import UsageError, size
from pathways_nb.runtime.local_islands import Kind
from pathways_nb.util.fallbacks import fall_back
from pathways_nb.util.progress import tell_reader

_PROXY = "proxy"
"""JAX's name of the backend of Pathways on Cloud."""

# ---- what JAX lists


def listed(kind: Kind) -> tuple[Kind, list[Any]]:
    """Return the kind and list of the devices that JAX lists: its own CPU devices, or its accelerators."""
    if kind == "cpu":
        return kind, list(jax.devices("cpu"))
    found, devices = found_devices()
    return found or kind, devices


def found_devices() -> tuple[Kind | None, list[Any]]:
    """Return the kind and list of the accelerators that JAX lists, ``None`` and an empty list if there are none.

    Raises:
        UsageError: JAX cannot start the backend that it was told to use, or this is one of several processes.
    """
    start_pathways()
    try:
        devices = jax.devices()
    except RuntimeError as error:
        raise UsageError(_cannot_start(str(error).strip().partition("\n")[0])) from None
    kind = kind_of(devices[0])
    if kind == "cpu" and not uses_proxy():
        return None, []
    # The proxy's service may have CPUs in place of TPUs, to try it: they are not this process's.
    kind = "tpu" if kind == "cpu" else kind
    if (processes := jax.process_count()) > 1:
        raise UsageError(
            f"attach: this is process {jax.process_index()} of {processes} (jax.process_count()), and a controller has "
            f"all its devices in one process. Start one process without jax.distributed.initialize(): on a cluster, "
            f'pw.attach("ray", islands={processes}, …) starts a process on each host by itself; on Pathways on Cloud '
            f"(JAX_PLATFORMS=proxy) one process has the devices of all hosts."
        )
    return kind, list(devices)


def start_pathways() -> None:
    """Initialize Pathways' utilities if JAX is told to use its proxy and they are installed; they do it once."""
    if uses_proxy() and importlib.util.find_spec("pathwaysutils") is not None:
        import pathwaysutils

        if pathwaysutils not in _started:
            _started.append(pathwaysutils)
            pathwaysutils.initialize()
            tell_reader(
                f"asking Pathways' proxy at {_target() or 'JAX_BACKEND_TARGET'} for its devices; where nobody answers "
                f"it gives up after two minutes (PATHWAYS_PROXY_CONNECTION_TIMEOUT_SECS sets another time)"
            )


_started: list[object] = []


def uses_proxy() -> bool:
    """Return whether JAX is told to use the proxy of Pathways on Cloud."""
    return _PROXY in _platforms().split(",")


def _platforms() -> str:
    """Return the platforms that JAX is told to use, as in ``JAX_PLATFORMS``; empty if it chooses."""
    return str(getattr(jax.config, "jax_platforms", None) or "")


def _target() -> str:
    """Return the address of the proxy that JAX is told; empty if none."""
    return os.environ.get("JAX_BACKEND_TARGET", "")


_PLUGINS = {
    "gpu": ("jax_cuda13_plugin", "jax_cuda12_plugin", "jax_rocm7_plugin", "jax_rocm60_plugin"),
    "tpu": ("libtpu",),
}
_EXTRAS = {"gpu": "cuda", "tpu": "tpu"}


def why_none(kind: str) -> str:
    """Return a sentence on why JAX lists no devices of a kind, by what is installed; it begins with a space."""
    told = _platforms()
    if told and not re.search(r"tpu" if kind == "tpu" else r"cuda|rocm|gpu", told):
        return f" JAX_PLATFORMS={told} keeps JAX from looking for one: unset it, and start again."
    there = [name for name in _PLUGINS[kind] if importlib.util.find_spec(name) is not None]
    if not there:
        return f" For {kind.upper()}s of this machine: pip install 'pathways_nb[{_EXTRAS[kind]}]'."
    fault = "a driver that is older than CUDA needs" if kind == "gpu" else "another process that has the TPU"
    platform = "cuda" if kind == "gpu" else kind
    return (
        f" {there[0]} is installed, so JAX could not start it ({fault}, say): "
        f"JAX_PLATFORMS={platform} python -c 'import jax; jax.devices()' tells why."
    )


def _cannot_start(why: str) -> str:
    asked = f"JAX_PLATFORMS={_platforms()}"
    if not uses_proxy():
        return f"attach: JAX cannot start a backend ({why}). Unset {asked} to let JAX choose, or install what it names."
    if importlib.util.find_spec("pathwaysutils") is None:
        return (
            f"attach: {asked}, but the package pathwaysutils, which brings that backend, is not installed ({why}). "
            f"Run: pip install 'pathways_nb[pathways]'."
        )
    return (
        f"attach: {asked}, but the proxy of Pathways does not answer at JAX_BACKEND_TARGET={_target()!r} ({why}). "
        f"Give the address of its server, such as grpc://127.0.0.1:29000."
    )


# ---- what a device says of itself


def kind_of(device: Any) -> Kind:
    """Return the kind of a device, whatever its platform calls itself."""
    platform, name = str(device.platform).lower(), _kind_name(device)
    if platform == "cpu":
        return "cpu"
    # Pathways' proxy may stand for GPUs, too; of devices without a name that tells, it has TPUs.
    told = f"{platform} {name}".lower()
    is_tpu = "tpu" in told or (_PROXY in platform and not re.search(r"nvidia|cuda|amd|rocm|gpu", told))
    return "tpu" if is_tpu or "pathways" in platform else "gpu"


def _kind_name(device: Any) -> str:
    return str(getattr(device, "device_kind", ""))


def slice_index(device: Any) -> int:
    """Return the TPU slice that a device belongs to; 0 where devices do not report it."""
    return getattr(device, "slice_index", None) or 0


def host_of(device: Any) -> int:
    """Return the host of a device: the task of Pathways that has it, else its process."""
    task = getattr(device, "virtual_task_index", None)
    # Not every version has the attribute; what is printed has the number.
    if task is None and (said := re.search(r"\b(?:vtask|logical_task)=(\d+)", repr(device))):
        task = int(said[1])
    return int(task if task is not None else getattr(device, "process_index", 0) or 0)


def cell_of(device: Any) -> Cell | None:
    """Return a device's coordinates in the torus of its slice; ``None`` if it tells none."""
    coords = getattr(device, "coords", None)
    return tuple(coords) if coords is not None and len(coords) else None


def core_of(device: Any) -> int:
    """Return the number of a device on its chip."""
    return getattr(device, "core_on_chip", None) or 0


def chip_name(devices: Sequence[Any]) -> str:
    """Return the name that the table of chips has for the chips of devices; empty if it has none."""
    chip = chip_of_kind(_kind_name(devices[0]))
    return "" if chip is None else chip.name


def stats_of(device: Any) -> dict[str, int] | None:
    """Return what a device tells of its memory; ``None`` if it tells nothing.

    Raises:
        Exception: of whatever class, by a backend that refuses.
    """
    said = device.memory_stats() or {}
    found = {name: int(value) for name, value in said.items() if isinstance(value, (int, float))}
    return found if found.get("bytes_limit", 0) > 0 else None


def capacity_of(devices: Sequence[Any]) -> int:
    """Return the bytes of memory of the smallest of some devices: what they report, else what the table of chips has.

    Returns:
        The bytes; 0 where neither tells.
    """
    refused: Exception | None = None
    try:
        told = [stats_of(device) for device in devices]
        if all(told):
            return min(one["bytes_limit"] for one in told if one)
    except Exception as error:  # of whatever class a backend without it raises
        refused = error
    chip = chip_of_kind(_kind_name(devices[0]))
    if chip is not None:
        return int(chip.device.hbm_bytes)
    if refused is not None:
        fall_back(
            "The memory of the attached devices cannot be read",
            refused,
            "No limit is kept: a program that needs too much fails when it runs. "
            "Say how many bytes a device has: pw.attach(…, hbm=16e9).",
        )
    return 0


def memory_note(devices: Sequence[Any], budget: int) -> str:
    """Return a line about a budget that devices do not report; empty if they do, or a warning has told it."""
    try:
        is_told = all(map(stats_of, devices))
    except Exception:  # of whatever class a backend without it raises
        is_told = not budget
    if is_told or (not budget and devices[0].platform == "cpu"):  # in place of accelerators, to try the proxy
        return ""
    if not budget:
        return (
            f"The devices do not report their memory, and the table of chips has no {_kind_name(devices[0])!r}: no "
            "limit is kept. hbm= sets one."
        )
    return (
        f"The devices do not report their memory: counted are {size(budget)} each, by the table of chips "
        f"({chip_name(devices)}), less the arrays of this process. hbm= sets another size."
    )
