"""``pw.work``: computations that only take time, to teach dispatch and to try schedules without a model.

Virtual CPU devices share cores, so the first device of the place spins and the others wait for it in an all-reduce:
the gang lasts the given time whatever its size. Nothing calls back to the host: a callback would make dispatch
synchronous, and dispatch is what these programs are made to show.
"""

from __future__ import annotations

import threading
import time
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from pathways_nb.errors import UsageError, is_number
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program.computation import Computation
from pathways_nb.program.signature import Signature
from pathways_nb.program.specs import Spec
from pathways_nb.program.static_arguments import Statics
from pathways_nb.util.json_text import shortened
from pathways_nb.util.limits import LONGEST, MEMORY
from pathways_nb.util.waiting import Workers
from pathways_nb.util.words import a_type_of

_LANES, _TIMES = 64, 32
"""Floats in the loop, and multiplications and additions of each in an iteration: some 0.1 µs of a processor's time.

The floats are few enough for XLA to keep the loop in one kernel. The operations are too many to count as cheap, which
XLA's CPU client would compute for one device before the launch returns.
"""
_MOST = 2**32 - 1
_NOTHING = np.float32(1)
"""The value that is passed on where there is no argument."""
_LONG_ENOUGH, _TRIES = 2e-3, 80
"""Seconds of one calibration run, long compared with a launch, and the number of runs."""


class _Work(Computation):
    """A computation whose argument stays in the layout in which it arrives."""

    def _leaf_specs(self, call: Signature) -> list[Spec]:
        return [None] * len(call.leaves)


def work(
    seconds: float, *, on: VirtualSlice, collective_bytes: int = 0, output_bytes: int = 0, name: str = ""
) -> Computation:
    """Return a computation that lasts ``seconds`` on the attached devices and does nothing else.

    It lasts longer where the devices are busy. Called with one array, it returns that array afterwards, so that stages
    chain: ``y = second(first(x))``; without an argument it returns the number 1. The first device of the place spins,
    calibrated once per process and kind of device, and the others wait for it. A launch adds its own cost (0.1 to
    0.3 ms on four virtual CPU devices). In a gradient, a work that returns its argument lasts as long again on the way
    back. In a fused program, works of equal name and time on the same value become one, as all equal operations do.

    Args:
        seconds: duration, positive; up to some minutes on real devices. Kept as ``.seconds`` and by the graph's nodes.
        on: the virtual slice to run on.
        collective_bytes: size of an all-reduce over the place at the end, in bytes on each device.
        output_bytes: if positive, return a fresh float32 array of about that size, split over the place's first axis,
            instead of the argument.
        name: its name in pictures and errors; ``"work"`` if left empty.

    Returns:
        The computation.

    Raises:
        UsageError: the time is not positive and finite, or a size is negative or not whole.
    """
    if not isinstance(on, VirtualSlice):
        raise UsageError(f"on={on!r} is {a_type_of(on)}; pass a pw.virtual_slice(...).")
    if not is_number(seconds) or not 0 < seconds <= LONGEST:
        raise UsageError(
            f"work(seconds={shortened(seconds)}): a positive, finite number of seconds is needed, at most {LONGEST:g}."
        )
    for option, size in (("collective_bytes", collective_bytes), ("output_bytes", output_bytes)):
        if not is_number(size) or not 0 <= size <= MEMORY or size != int(size):
            asked = f"work({option}={shortened(size)})"
            raise UsageError(f"{asked}: a whole number of bytes of at least 0 is needed, at most {MEMORY:g}.")

    def body(x: Any = _NOTHING) -> Any:
        # Its name at the call, which is set below: works of other names must not become one in a fused program.
        return _last(
            x, float(seconds), on, int(collective_bytes), int(output_bytes), zlib.crc32(body.__name__.encode())
        )

    body.__name__ = name or "work"
    out_specs = PartitionSpec(on.axes[0]) if output_bytes else None
    made = _Work(body, "jit", on, None, out_specs, Statics.of(body, (), (), (), ()))
    made.seconds = float(seconds)
    return made


def _last(x: Any, seconds: float, place: VirtualSlice, collective_bytes: int, output_bytes: int, mark: int) -> Any:
    """Return ``x``, or a fresh array, after the time is over; ``mark`` keeps works of equal time and place distinct."""
    device = jax.sharding.get_abstract_mesh().abstract_device
    # A place without a kind of device is never compiled for, only simulated.
    iterations = 1 if device is None else min(round(seconds / seconds_per_iteration(device.platform, place)), _MOST)
    start = np.float32(0.4 + 0.2 * mark / 2**32)

    def spin(x: Any) -> jax.Array:
        # Loops that do not depend on different values would become one where several works are fused.
        seed = jnp.where(_first(jax.lax.stop_gradient(x)) > 0, start, start + np.float32(0.01))
        return _spin(seed, place.axes, iterations, max(collective_bytes // 4, 1))

    if output_bytes:
        rows = place.shape[0]
        return _after(spin(x), jnp.ones(-(-output_bytes // (4 * rows)) * rows, jnp.float32))

    @jax.custom_vjp
    def pass_on(x: Any) -> Any:
        return _after(spin(x), x)

    def forward(x: Any) -> tuple[Any, jax.Array]:
        token = spin(x)
        return _after(token, x), token

    # As after any real stage, backward waits for forward.
    pass_on.defvjp(forward, lambda token, gradient: (_after(token + spin(gradient), gradient),))
    return pass_on(x)


def _first(x: Any) -> Any:
    return jnp.real(jnp.ravel(x)[0]) if jnp.size(x) else jnp.float32(0)


def _after(token: jax.Array, x: Any) -> Any:
    """Return ``x`` in a way that the compiler cannot know without having computed ``token``."""
    return jax.lax.select(jnp.isfinite(token), x, jnp.zeros_like(x))


def _spin(seed: jax.Array, axes: tuple[str, ...], iterations: int, floats: int) -> jax.Array:
    """Spin on the first device of the place; all devices leave together, through an all-reduce of ``floats`` numbers.

    Returns:
        A number that depends on all of it.
    """

    def on_each_device(seed: jax.Array) -> jax.Array:
        spun = _loop(jnp.where(jax.lax.axis_index(axes) == 0, np.uint32(iterations), np.uint32(0)), seed)
        return jax.lax.psum(spun + jnp.arange(floats, dtype=jnp.float32), axes)[0]

    spec = PartitionSpec()
    return jax.shard_map(on_each_device, in_specs=spec, out_specs=spec, check_vma=False)(seed)


def _loop(iterations: Any, seed: Any) -> jax.Array:
    start = jnp.full(_LANES, seed, jnp.float32)
    return jax.lax.fori_loop(np.uint32(0), iterations, lambda _, x: _iteration(x), start)[0]


def _iteration(x: Any) -> Any:
    for _ in range(_TIMES):
        x = x * np.float32(0.5) + np.float32(0.25)
    return x


def spin_on(find: Callable[[VirtualSlice], Any]) -> None:
    """Register the function that returns the first device of a place; ``None`` if it is not of this process."""
    _find[:] = [find]


_find: list[Callable[[VirtualSlice], Any]] = []
"""The registered function; none until ``session.calls.program`` is imported, as ``import pathways_nb`` does."""


def seconds_per_iteration(platform: str, place: VirtualSlice) -> float:
    """Return the seconds of one iteration on a device of a place, measured once for each kind of device."""
    # A virtual CPU device is measured on JAX's own: an island's may be busy, and its threads step back.
    # Hosts of a cluster may have devices that this process has not: as long as on its own.
    device = _of_cpu(platform) or (_find[0](place) if _find else None) or jax.devices()[0]
    kind = device.platform, str(device.device_kind)
    with _measuring:
        if kind not in _measured:
            # In another thread, since this one is in the midst of a trace.
            _measured[kind] = Workers("pathways-measure", 1).submit(_measure, device).result()
        return _measured[kind]


_measuring = threading.Lock()
_measured: dict[tuple[str, str], float] = {}


def _of_cpu(platform: str) -> Any:
    """Return JAX's own CPU device if the platform is that, and JAX was told to have one; else ``None``."""
    try:
        return jax.devices(platform)[0] if platform == "cpu" else None
    except RuntimeError:
        return None


def _measure(device: Any) -> float:
    """Return the seconds of one iteration on one device: the best of many short runs, as other work only adds time."""
    loop = jax.jit(_loop)

    def seconds(iterations: int) -> float:
        arguments = jax.device_put((np.uint32(iterations), np.float32(0.5)), device)
        began = time.perf_counter()
        loop(*arguments).block_until_ready()
        return time.perf_counter() - began

    seconds(iterations := 1000)  # compiles
    while seconds(iterations) < _LONG_ENOUGH:
        iterations *= 2
    return min(seconds(iterations) for _ in range(_TRIES)) / iterations
