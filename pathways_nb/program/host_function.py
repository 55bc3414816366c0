"""``pw.host``: Python functions that prepare data on an island's host, as ordinary nodes of a program.

Reading and preparing data is work between computations. As a node it has its place in the graph and in the record, its
outputs go to devices like any other value, and it runs while the devices work, and ahead of them (Pathways, section
4.5: what the host does is hidden behind what the devices do).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from pathways_nb.errors import UsageError, is_number
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program import context, specs
from pathways_nb.program.computation import Computation
from pathways_nb.program.host_work import HostWork, Seconds
from pathways_nb.program.signature import Aval, Signature, aval_of, snapshot
from pathways_nb.program.static_arguments import Statics
from pathways_nb.util.json_text import shortened
from pathways_nb.util.limits import LONGEST
from pathways_nb.util.option_names import checked_options
from pathways_nb.util.words import a_type_of


class HostFunction(Computation):
    """A function on the host of a virtual slice's island, made by ``pw.host``.

    It is called like a computation: inside a ``pw.program`` it is one node, outside it returns futures at once.
    """

    declared_seconds: Seconds = None
    """Duration in simulated time: seconds, or a function that returns them for each call."""

    def __init__(self, fn: Callable[..., Any], place: VirtualSlice, out: Any, shardings: Any):
        super().__init__(fn, "jit", place, None, None, Statics.of(fn, (), (), (), ()))
        self.out = out
        self.outputs, self.paths = _declared(self.name, out)
        specs.check_tree(shardings, "shardings", self.name, place)
        self.specs = tuple(specs.spread(shardings, out, "shardings", self.name))
        for aval, spec, path in zip(self.outputs, self.specs, self.paths, strict=True):
            specs.check_leaf(aval.shape, spec, place, f"{self.name}: output{path}", "shardings")
        self._work: dict[Any, HostWork] = {}

    def stage(self, trace: context.Tracing, call: Signature) -> Any:
        """Add the call to the trace under way as one equation; see ``Computation.stage``."""
        trace.refuse_futures(call)
        call.refuse_narrowed()
        trace.places[self.place.serial] = self.place
        trace.host_work.append(self.name)
        for name, leaf in zip(call.names, call.leaves, strict=True):
            if jax.dtypes.issubdtype(getattr(leaf, "dtype", None), jax.dtypes.prng_key):
                raise UsageError(
                    f"{self.name}: {name} is a typed random key, which NumPy does not have. Pass jax.random.key_data("
                    f"key)."
                )
        key = call.tree, call.static_key
        if key not in self._work:
            self._work[key] = self._work_for(call)
        # Copies, because the caller may change an array before the function reads it.
        return self._work[key].bind([x if isinstance(x, jax.core.Tracer) else snapshot(x) for x in call.leaves])

    def _work_for(self, call: Signature) -> HostWork:
        tree = jax.tree.structure(self.out)
        return HostWork(
            self.name, self.fn, self.place.serial, call.without_leaves(), tree, self.outputs, self.paths, self.specs,
            self.declared_seconds, self.line,
        )  # fmt: skip

    def _inline(self, trace: context.Tracing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        inside = trace.inside[-1].name
        raise UsageError(
            f"{self.name} is host work and is called inside the computation {inside}, which runs on devices. Call it "
            f"in the @pw.program, and pass what it returns to {inside}."
        )

    def __repr__(self) -> str:
        return f"<host function {self.name} beside {self.place.label}>"


def _declared(name: str, out: Any) -> tuple[tuple[Aval, ...], tuple[str, ...]]:
    """Return the shape and dtype of each declared output, and its path.

    Raises:
        UsageError: a leaf has no shape and dtype, or a dtype that JAX holds as another.
    """
    avals, paths = [], []
    for path, leaf in jax.tree_util.tree_leaves_with_path(out):
        where = jax.tree_util.keystr(path)
        aval = aval_of(leaf) if hasattr(leaf, "dtype") or isinstance(leaf, (bool, int, float, complex)) else None
        if aval is None:
            raise UsageError(
                f"pw.host({name}, out=…): output{where} is {a_type_of(leaf)}; give jax.ShapeDtypeStruct(shape, dtype) "
                f"or an example of what {name} returns."
            )
        asked = np.dtype(leaf.dtype) if hasattr(leaf, "dtype") else aval.dtype
        if asked != (held := jax.dtypes.canonicalize_dtype(asked)):
            raise UsageError(
                f"pw.host({name}, out=…): output{where} is {asked}, which JAX holds as {held} unless jax_enable_x64 is "
                f"set. Declare and return {held}."
            )
        avals.append(Aval(tuple(aval.shape), asked))
        paths.append(where)
    return tuple(avals), tuple(paths)


@checked_options(on="the virtual slice whose host runs the function, such as on=pw.virtual_slice(4)")
def host(
    fn: Callable[..., Any] | None = None,
    *,
    on: VirtualSlice,
    out: Any = None,
    shardings: Any = None,
    seconds: Seconds = None,
) -> Any:
    """Bind ``fn``, which takes and returns NumPy arrays, to the host of a virtual slice's island. Also a decorator.

    Called in a program it is an ordinary node. It runs once for each call of the program, never while the program is
    traced, in program order on a thread of the island, while the devices work, and ahead of them. Arguments are brought
    to the host, and wait for what computes them; outputs are put onto the devices of the computations that read them.
    It may have state (``next(batches)``).

    Args:
        fn: the function; leave it out to use ``@pw.host(on=place, …)``.
        on: the virtual slice; its island's host runs the function.
        out: what the function returns: a tree of ``jax.ShapeDtypeStruct``, or an example; ``None`` if it returns
            nothing: then a call returns no future.
        shardings: a ``pw.P`` over the slice's axes, or a prefix tree of them, in which outputs are put onto ``on``; by
            default what the first reader declares, else replicated.
        seconds: how long it takes on simulated devices: a number, or a function that returns one for each call. Real
            devices do not need it.

    Returns:
        The function as a node, or a decorator that makes one.

    Raises:
        ShardingError: a spec names an axis the slice lacks, or does not divide an output.
        UsageError: ``on`` is not a virtual slice, or ``out`` or ``seconds`` is no such thing.
    """
    if not isinstance(on, VirtualSlice):
        raise UsageError(f"on={on!r} is {a_type_of(on)}; pass a pw.virtual_slice(...).")
    if seconds is not None and not callable(seconds):
        check_seconds("pw.host", seconds)

    def make(fn: Callable[..., Any]) -> HostFunction:
        if not callable(fn):
            raise UsageError(f"pw.host({fn!r}, ...) needs a function, got {a_type_of(fn)}.")
        made = HostFunction(fn, on, out, shardings)
        made.declared_seconds = seconds if seconds is None or callable(seconds) else float(seconds)
        return made

    return make if fn is None else make(fn)


def check_seconds(name: str, seconds: Any) -> float:
    """Return a duration of host work in seconds.

    Raises:
        UsageError: it is no number of seconds.
    """
    if not is_number(seconds) or not 0 <= seconds <= LONGEST:
        raise UsageError(
            f"{name}: seconds={shortened(seconds)}; a number of seconds, 0 or more, is needed, at most {LONGEST:g}."
        )
    return float(seconds)
