"""A node compiled for a mesh of CPU devices on which nothing runs: its collectives, memory and layouts.

The jaxpr of a data-parallel step holds no collective; they are the compiler's choice, and so is what it keeps in
memory. Compiling takes about as long for hundreds of devices as for two, so a node is compiled for the mesh that it
runs on. Where making a client of so many devices would take too long, it is compiled for a small mesh of the same axes,
and once more with each longer axis in turn lengthened. How the arrays of each collective grow or shrink with that axis
tells the power with which they scale. Where all that goes over an axis is sums it is not lengthened: what is summed
over an axis is not split by it, so it is as large for any number of devices.
"""

from __future__ import annotations

import functools
import math
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from pathways_nb.cost.collectives.collective import Collective, Origin, merged
from pathways_nb.cost.collectives.kinds import BY_NAME
from pathways_nb.cost.hlo.hlo_collectives import HloCollective, hlo_collectives_of
from pathways_nb.cost.hlo.hlo_text import parse
from pathways_nb.cost.hlo.quick_compiling import cpu_devices, quick_options
from pathways_nb.errors import UsageError


@dataclass(frozen=True, slots=True)
class CompiledMemory:
    """The compiler's memory analysis of a node, in bytes on each device.

    Args:
        temporary: needed beyond inputs and outputs.
        reused: of outputs, in memory taken over from donated inputs.
        out_specs: the partition spec of each output; None where its layout cannot be written as one.
    """

    temporary: int
    reused: int
    out_specs: tuple[PartitionSpec | None, ...]


@dataclass(frozen=True, slots=True)
class CompiledFacts:
    """Facts about a node from its compilation.

    Args:
        collectives: of the node, at its full size.
        sizes: axis sizes that it was compiled for.
        notes: what could not be known.
        memory: for the last of ``sizes``.
    """

    collectives: tuple[Collective, ...]
    sizes: tuple[dict[str, int], ...]
    notes: tuple[str, ...] = ()
    memory: CompiledMemory | None = None


def collectives_by_compiling(
    fn: Callable[..., Any],
    avals: Sequence[Any],
    in_specs: Sequence[Any],
    out_specs: Any,
    axis_sizes: Mapping[str, int],
    devices: Sequence[Any] | None = None,
    most_devices: int = 16,
    for_mesh: bool = False,
    donated: Sequence[int] = (),
) -> CompiledFacts:
    """Return the collectives and the memory of whole-array code on a mesh.

    A mesh of up to ``most_devices`` devices is compiled as it is. For a larger one each axis is cut to its smallest
    prime factor, so that arrays still divide, and lengthened once by the next factor to see how sizes change, unless
    all collectives are sums over it; powers are whole numbers. The number of collectives is that of the small mesh.
    Where the lengthened mesh is too large, or gives another list of collectives, an axis that a collective goes over
    scales it by rule: an all-to-all's part is inverse to the axis, the rest stays; and an axis that it does not go over
    leaves it as it is. ``notes`` say so.

    Args:
        fn: a function of whole arrays.
        avals: its positional arguments, pytrees of arrays or ``ShapeDtypeStruct``.
        in_specs: ``PartitionSpec`` trees of the arguments, prefixes as in ``jax.jit``; None is the compiler's choice.
        out_specs: the same of the results.
        axis_sizes: devices along each axis, in the mesh's order.
        devices: CPU devices to compile for, on which nothing runs; None to make them when needed.
        most_devices: most devices of a mesh to compile for.
        for_mesh: whether ``fn(mesh)`` returns the function, for code that names its mesh.
        donated: positions of the arguments whose memory may be taken over.

    Raises:
        UsageError: an axis has no small factor, or this JAX can make no CPU devices.
    """
    compile_for = functools.partial(
        _compile_for_mesh, fn if for_mesh else lambda mesh: fn, avals, in_specs, out_specs, devices, donated
    )
    # The wanted mesh itself where it is small enough: then nothing is lengthened or scaled below.
    small = _small(axis_sizes, most_devices)
    base, memory = compile_for(small)
    notes = [] if all(e.sure for e in base) else ["a loop of unknown length, or a branch, is counted once"]
    # (collectives, parts of each) powers by axis
    powers: list[list[dict[str, int]]] = [[{} for _ in e.parts] for e in base]
    sizes = [small]
    for axis, longer in _lengthened(small, axis_sizes) if base else ():
        # What is summed over an axis is not split by it, so it is as large for any number of devices.
        known = all(BY_NAME[e.kind].sums and axis in e.axes for e in base)
        # A client of more CPU devices would take too long to make.
        fits = math.prod(longer.values()) <= most_devices and not known
        other: list[HloCollective] = []
        if fits:
            (other, memory), sizes = compile_for(longer), [*sizes, longer]
        if not known and not _same_list(base, other):
            notes.append(f"how collectives scale with {axis!r} is a rule, not measured")
        _fill_powers(powers, base, other, axis, longer[axis] / small[axis])
    found = (_scaled(e, p, small, axis_sizes) for e, p in zip(base, powers, strict=True))
    return CompiledFacts(merged(found), tuple(sizes), tuple(notes), memory)


def _small(axis_sizes: Mapping[str, int], most: int) -> dict[str, int]:
    """Return the axis sizes to compile for: the wanted ones if they are few devices, else prime factors of them.

    Raises:
        UsageError: even the smallest factors make too many devices.
    """
    if math.prod(axis_sizes.values()) <= most:
        return dict(axis_sizes)
    # Prime factors, so that every array that the wanted mesh divides is divided by the small one, too.
    small = {axis: _prime(size) for axis, size in axis_sizes.items()}
    if math.prod(small.values()) > most:
        sizes = ", ".join(f"{axis!r}: {size}" for axis, size in axis_sizes.items())
        raise UsageError(
            f"collectives_by_compiling(axis_sizes={{{sizes}}}): cut to their smallest prime factors, the axes still "
            f"take {math.prod(small.values())} devices, more than {most}. Use fewer axes, or sizes with small "
            f"factors such as powers of two."
        )
    return small


def _lengthened(small: Mapping[str, int], wanted: Mapping[str, int]) -> Iterator[tuple[str, dict[str, int]]]:
    """Yield for each axis that is cut the small mesh with that axis longer by one more factor."""
    for axis, size in wanted.items():
        if size != small[axis]:
            yield axis, {**small, axis: small[axis] * _prime(size // small[axis])}


def _prime(size: int) -> int:
    """Return the smallest prime factor of a size; 1 for 1."""
    return next((n for n in range(2, math.isqrt(size) + 1) if size % n == 0), size)


def _compile_for_mesh(
    fn_of: Callable[[Mesh], Callable[..., Any]],
    avals: Sequence[Any],
    in_specs: Any,
    out_specs: Any,
    devices: Sequence[Any] | None,
    donated: Sequence[int],
    sizes: Mapping[str, int],
) -> tuple[list[HloCollective], CompiledMemory]:
    """Return the collectives and the memory of a node compiled for a mesh of these sizes."""
    count = math.prod(sizes.values())
    chosen = (devices if devices is not None and len(devices) >= count else cpu_devices(count))[:count]
    # ``Auto``: the partitioner chooses layouts and collectives, as it does when the node runs.
    kinds = (AxisType.Auto,) * len(sizes)
    mesh = Mesh(np.array(chosen).reshape(tuple(sizes.values())), tuple(sizes), axis_types=kinds)

    def place(tree: Any) -> Any:
        """Return partition specs as shardings on the mesh."""
        leaf = lambda spec: spec is None or isinstance(spec, PartitionSpec)  # noqa: E731
        return jax.tree.map(lambda s: None if s is None else NamedSharding(mesh, s), tree, is_leaf=leaf)

    laid = {"in_shardings": place(tuple(in_specs)), "out_shardings": place(out_specs)}
    # Only compiled here: where a donated buffer cannot be used, the real call warns.
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="Some donated buffers were not usable")
        # ``keep_unused``: an argument that the function does not read is in memory all the same.
        jitted = jax.jit(fn_of(mesh), **laid, donate_argnums=tuple(donated), keep_unused=True)
        compiled = jitted.lower(*avals).compile(compiler_options=dict(quick_options()))
    # Sorted, since XLA may issue the same collectives in another order on a longer mesh.
    exchanges = sorted(hlo_collectives_of(parse(compiled.as_text() or ""), sizes), key=_order)
    # Of the analysis not its peak field, which the local driver does not read either.
    found: Any = compiled.memory_analysis()
    specs = tuple(map(_spec_of, jax.tree.leaves(compiled.output_shardings)))
    return exchanges, CompiledMemory(found.temp_size_in_bytes, found.alias_size_in_bytes, specs)


def _spec_of(sharding: Any) -> PartitionSpec | None:
    """Return the partition spec of a sharding; None if it has none."""
    if isinstance(sharding, NamedSharding):
        return sharding.spec
    return PartitionSpec() if sharding.is_fully_replicated else None


def _same_list(one: Sequence[HloCollective], other: Sequence[HloCollective]) -> bool:
    """Return whether two modules have the same list of collectives, but for sizes."""
    return [_form(e) for e in one] == [_form(e) for e in other]


def _order(exchange: HloCollective) -> tuple[Any, ...]:
    """Return a sort key that is the same for each mesh, so that collectives of two modules can be paired."""
    sizes = [math.prod(dims) for _, dims in exchange.parts]
    return exchange.kind, exchange.axes, exchange.times, len(sizes), sum(sizes)


def _form(exchange: HloCollective) -> tuple[Any, ...]:
    """Return the properties of a collective that do not depend on the mesh."""
    return exchange.kind, exchange.axes, exchange.times, [bits for bits, _ in exchange.parts]


def _fill_powers(
    powers: list[list[dict[str, int]]],
    base: Sequence[HloCollective],
    other: Sequence[HloCollective],
    axis: str,
    ratio: float,
) -> None:
    """Note the power of an axis with which each part grows.

    Args:
        powers: by collective, part and axis; filled in.
        base: collectives on the small mesh.
        other: collectives on the lengthened mesh; empty if there is none.
        axis: that was lengthened.
        ratio: of its two lengths.
    """
    measured = _same_list(base, other)
    for number, exchange in enumerate(base):
        for part, (_, dims) in enumerate(exchange.parts):
            power = BY_NAME[exchange.kind].growth if axis in exchange.axes else 0
            # A part without elements says nothing of its growth.
            if measured and (before := math.prod(dims)):
                after = math.prod(other[number].parts[part][1])
                # Padding makes sizes differ a little from the power; the nearest whole one is meant.
                power = round(math.log(max(after, 1) / before, ratio))
            powers[number][part][axis] = power


def _scaled(
    exchange: HloCollective, powers: Iterable[Mapping[str, int]], small: Mapping[str, int], wanted: Mapping[str, int]
) -> Collective:
    """Return a collective at the wanted axis sizes.

    Args:
        exchange: the collective on the small mesh.
        powers: of each axis, for each part.
        small: axis sizes of the small mesh.
        wanted: axis sizes of the real mesh.
    """
    total = 0.0
    for (bits, dims), power in zip(exchange.parts, powers, strict=True):
        factor = math.prod((wanted[axis] / small[axis]) ** by for axis, by in power.items())
        total += math.prod(dims) * bits / 8 * factor
    # Without axes the groups follow none (lists of ids), so their size cannot be scaled.
    group = math.prod(wanted[axis] for axis in exchange.axes) if exchange.axes else exchange.group
    origin: Origin = "compiled" if dict(small) == dict(wanted) else "scaled"
    return Collective(exchange.kind, round(total), exchange.axes, group, exchange.times, origin)
