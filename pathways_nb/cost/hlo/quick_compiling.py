"""For what runs once or never: options of XLA that make machine code quickly, and CPU devices to compile for."""

from __future__ import annotations

import functools
import threading
from collections.abc import Sequence
from types import MappingProxyType
from typing import Any

import jax

from pathways_nb.errors import UsageError

_NODE = 500_000  # far from the device ids of every island
_WISHED: dict[str, Any] = {
    "xla_backend_optimization_level": 0,
    "xla_cpu_use_fusion_emitters": False,
    "xla_cpu_parallel_codegen_split_count": 1,
}


@functools.cache
def quick_options() -> MappingProxyType[str, Any]:
    """Return options that halve the time of compiling for CPU; those that this JAX lacks are left out.

    The passes of the partitioner stay the usual ones. Which options there are is tried once, on a constant.
    """
    known = dict(_WISHED)
    with jax.default_device(cpu_devices(1)[0]):
        lowered = jax.jit(lambda: 0).lower()
    while known:
        try:
            lowered.compile(compiler_options=dict(known))
            break
        except jax.errors.JaxRuntimeError as error:
            # JAX refuses all options if it does not know one; the error names that one.
            unknown = [name for name in known if name in str(error)]
            if not unknown:
                raise
        for name in unknown:
            del known[name]
    return MappingProxyType(known)


def cpu_devices(count: int) -> Sequence[Any]:
    """Return at least so many devices to compile for: JAX's own, else those of another client, where nothing ever runs.

    One client is kept, the largest asked for: each has threads for all of its devices.
    """
    # JAX's own first: another client has threads for all of its devices.
    try:
        there = jax.devices("cpu")
    except RuntimeError:  # JAX_PLATFORMS names accelerators only, such as Pathways' proxy
        there = []
    if len(there) >= count:
        return there
    with _devices_lock:
        # Under the lock, or two threads that compile at once would make two clients.
        if len(_devices) < count:
            _devices[:] = _client(count, len(there))
        return tuple(_devices)


_devices: list[Any] = []
_devices_lock = threading.Lock()


def _client(count: int, there: int) -> Sequence[Any]:
    """Return the devices of a new CPU client.

    Args:
        count: number of devices.
        there: number of devices that JAX has, for the error.

    Raises:
        UsageError: this JAX can make no client.
    """
    from jaxlib import xla_client

    maker = getattr(xla_client, "make_cpu_client", None)
    if maker is None:
        raise UsageError(
            f"collectives_by_compiling needs {count} CPU devices, JAX has {there} and can make no others. Pass "
            f'devices=, or set jax.config.update("jax_num_cpu_devices", {count}) before JAX starts.'
        )
    # A node id of its own, so that ids of its devices are far from those of every island.
    return maker(num_devices=count, node_id=_NODE + count).devices()
