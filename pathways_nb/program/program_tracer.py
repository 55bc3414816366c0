"""Programs: Python functions traced by JAX itself into a sharded dataflow graph (Pathways, sections 3 and 4.2).

A program is traced once per signature and then replayed. Since JAX does the tracing, ``jax.grad``, ``jax.checkpoint``,
``jax.vmap`` and Optax compose with computations on different islands.
"""

from __future__ import annotations

import functools
import inspect
import weakref
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import jax
from jax.experimental.xla_metadata import set_xla_metadata

from pathways_nb.errors import UsageError
from pathways_nb.plan import source_lines
from pathways_nb.plan.function_names import function_name
from pathways_nb.plan.graph import Graph
from pathways_nb.plan.memory_categories import category_of
from pathways_nb.plan.virtual_slice import VirtualSlice, by_serial, keep_for
from pathways_nb.program import context
from pathways_nb.program.build import Code, build
from pathways_nb.program.computation import NOT_PICKLED, Computation
from pathways_nb.program.items import FlatProgram, closed_over
from pathways_nb.program.jax_contexts import Contexts
from pathways_nb.program.models import builder, with_static_parts
from pathways_nb.program.signature import Aval, Deferred, Signature, aval_of
from pathways_nb.program.static_arguments import Statics
from pathways_nb.util.unique import Unique
from pathways_nb.util.words import a_type_of

_DEFAULT = VirtualSlice((1,), ("x",), name="default", serial=-1)
"""The place of a program without any computation."""


@dataclass(frozen=True, eq=False)
class Traced:
    """A program for one signature: its graph, what the nodes compute, and its arguments and results by value id."""

    graph: Graph
    places: tuple[VirtualSlice, ...]
    """The virtual slices it uses, oldest first; at least one."""
    codes: dict[int, Code]
    avals: tuple[Aval, ...]
    """Shape and type of each value, by its id."""
    arguments: tuple[int, ...]
    results: tuple[int, ...]
    out_tree: Any
    donated: tuple[int, ...]
    """Positions of donated arguments."""
    contexts: Contexts
    """JAX's contexts at the line of the call: those under which it is lowered, compiled and carried out."""
    cropped: tuple[tuple[int, tuple[int, ...]], ...]
    """Positions of results that are returned with padding, and their shapes without it."""
    layouts: weakref.WeakKeyDictionary[Any, Any] = field(default_factory=weakref.WeakKeyDictionary)
    """Its plans and compiled plans, by a session's epoch: when devices change, a new epoch begins."""

    @cached_property
    def build(self) -> Callable[[Sequence[Any]], Any]:
        """Puts results together to what the function returns."""
        return builder(self.out_tree)

    @property
    def name(self) -> str:
        """The program's name."""
        return self.graph.name

    @property
    def is_unplaced(self) -> bool:
        """Whether it consists of ordinary operations only, so that nothing says where it runs."""
        return self.places == (_DEFAULT,)


class ProgramTracer(Unique):
    """Traces a function over computations, once per signature; ``session.calls.program`` makes it callable."""

    _not_pickled = NOT_PICKLED

    def __init__(
        self,
        fn: Callable[..., Any],
        statics: Statics,
        name: str = "",
        fuse: bool = False,
        categories: Mapping[str, str] | None = None,
    ):
        self.categories = dict(categories or {})
        """By path of an argument or a result: what its memory is held for."""
        self.fn, self.statics, self.fuse = fn, statics.bound_to(fn), fuse
        self.name = name or function_name(fn)
        self._traced: dict[Any, Traced] = {}
        self.decide: Callable[..., Callable[[], None]] | None = None
        """Called with the arguments of the first call of each trace, before it is compiled. What it returns is called
        before anything is dispatched or donated, and may refuse the values. Inside another program it is called with
        traced values."""
        self._decided: set[Traced] = set()
        self.known_calls: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
        """By a session's epoch, what its calls have found; see ``session.calls.known_calls``."""

    def __repr__(self) -> str:
        return f"<program {self.name}>"

    def signature(self, args: tuple[Any, ...], kwargs: dict[str, Any], contexts: Contexts | None = None) -> Signature:
        """Return the call's arguments, flattened, with static ones set apart; ``contexts`` as in ``Signature.of``."""
        return Signature.of(self.statics, args, kwargs, self.name, contexts)

    def cached(self, call: Signature, avals: tuple[Aval, ...], platform: str) -> Traced | None:
        """Return the trace of an equal call on the same kind of device, or ``None``."""
        return self._traced.get(self._key(call, avals, platform))

    def trace(self, call: Signature, avals: tuple[Aval, ...], platform: str, mesh_of: context.MeshOf) -> Traced:
        """Trace the function for one signature and cache the result.

        Args:
            call: the arguments.
            avals: shape and type of each leaf.
            platform: kind of device; part of the cache's key.
            mesh_of: returns the abstract mesh of a virtual slice.

        Returns:
            The trace.

        Raises:
            UsageError: a future or a device array from outside is used, or a loop contains a computation; or JAX would
                narrow an argument.
        """
        call.check_width(avals)
        trace = context.Tracing(self.name, mesh_of, functools.partial(captured_name, self.fn))
        out_tree: list[Any] = []
        cropped: list[tuple[int, tuple[int, ...]]] = []

        def flat_fn(*leaves: Any) -> list[Any]:
            # The function sees its values without padding. Where it returns one as it came, ``padded_array`` finds
            # the padded one again, so that parameters of FSDP stay as they are.
            values = [leaf if aval.padded is None else trace.cropped(leaf, aval.shape)
                      for leaf, aval in zip(leaves, avals, strict=True)]  # fmt: skip
            args, kwargs = call.rebuild(values)
            out_leaves, tree = jax.tree.flatten(with_static_parts(self.fn(*args, **kwargs)))
            # ``jax.make_jaxpr`` is given a function of flat lists, so the tree is remembered here.
            out_tree[:] = [tree]
            self._check_results(trace, out_leaves)
            kept = [trace.padded_array(leaf) for leaf in out_leaves]
            cropped[:] = [(at, leaf.shape) for at, leaf in enumerate(out_leaves) if kept[at] is not leaf]
            return kept

        try:
            with apart(platform):
                closed = context.under(trace, self._make_jaxpr, trace, flat_fn, avals)
        except Exception as error:
            call.explain(error, f"the program {self.name!r}")
            raise
        self._refuse_captured(closed)
        flat = FlatProgram.of(closed)
        homes = {value: home for value, home in zip(flat.inputs, call.homes, strict=False) if home is not None}
        # By the names of the items, too: what JAX had traced before, of a shared ``jit`` or checkpoint in another
        # program, did not pass through this trace.
        met = {item.place for item in flat.ops if item.place is not None}
        used = sorted(met | set(trace.places) | set(homes.values()))
        places = tuple(map(by_serial, used)) or (_DEFAULT,)
        for item in flat.ops:
            if item.place is not None:
                # JAX may give the jaxpr of a user's ``jax.jit`` to a later program, which finds the place by its
                # serial.
                keep_for(item.jaxpr, by_serial(item.place))
        parameters = [name.removeprefix("argument ").partition("[")[0] for name in call.names]
        graph, codes = build(self.name, flat, {place.serial: place for place in places}, parameters, self.fuse, homes)
        results, values = graph.nodes[-1].inputs, tuple(flat.avals)
        if self.categories:
            graph = replace(graph, categories=self._declared(call.names, flat.inputs, out_tree[0], results))
        traced = Traced(
            graph, places, codes, values, flat.inputs, results, out_tree[0], call.donated, call.contexts, tuple(cropped)
        )  # fmt: skip
        # Last: an interrupt before this line leaves no part of a trace behind.
        self._traced[self._key(call, avals, platform)] = traced
        return traced

    def accept(self, traced: Traced, call: Signature) -> Callable[[], None] | None:
        """Let ``decide`` see the values of the first call of a trace.

        Args:
            traced: the trace.
            call: the arguments.

        Returns:
            What is to be called before the program is submitted, and may refuse the values; ``None`` if nothing is.
        """
        if self.decide is None or traced in self._decided:
            return None
        args, kwargs = call.rebuild(call.leaves)
        conclude = self.decide(*args, **kwargs)

        def accepted() -> None:
            conclude()
            # Only now: a call that was refused is asked again.
            self._decided.add(traced)

        return accepted

    def _declared(
        self, names: Sequence[str], arguments: Sequence[int], out_tree: Any, results: Sequence[int]
    ) -> dict[int, str]:
        """Return the declared categories of arguments and results by value; of a value that is both, the result's.

        Args:
            names: of each argument leaf, as in errors.
            arguments: the value of each argument leaf.
            out_tree: the tree of the results.
            results: the value of each result leaf.
        """
        leaves, _ = jax.tree_util.tree_flatten_with_path(jax.tree.unflatten(out_tree, results))
        paths = [(name.removeprefix("argument "), value) for name, value in zip(names, arguments, strict=True)]
        paths += [(f"result{jax.tree_util.keystr(path)}", value) for path, value in leaves]
        found = {value: category_of(path, self.categories) for path, value in paths}
        return {value: category for value, category in found.items() if category is not None}

    def _make_jaxpr(self, trace: context.Tracing, flat_fn: Callable[..., Any], avals: tuple[Aval, ...]) -> Any:
        try:
            return jax.make_jaxpr(flat_fn)(*(aval.on_devices.struct for aval in avals))
        except NotImplementedError as error:
            if not trace.host_work or "checkpoint" not in str(error):
                raise
            raise UsageError(
                f"the program {self.name!r} calls {trace.host_work[-1]}, which is host work, inside jax.checkpoint, "
                f"which would call it again for the backward pass. Call it outside, and pass what it returns."
            ) from None
        # ``AttributeError``: a tracer has no ``result`` or ``wait``, which the future outside the trace has.
        except (jax.errors.ConcretizationTypeError, jax.errors.TracerArrayConversionError, AttributeError) as error:
            does = _needs_value(error)
            if not does:
                raise
            line = source_lines.traceback_line(error.__traceback__)
            raise UsageError(
                f"the program {self.name!r} {does} a value that is not known while it is traced ({line}). "
                f"Use jax.lax.cond inside a computation, or branch in a cell, outside the program, on y.result()."
            ).with_traceback(error.__traceback__) from None  # which ends in that line

    def _key(self, call: Signature, avals: tuple[Aval, ...], platform: str) -> Any:
        # The platform, because meshes of simulated and of real devices differ; the contexts, because JAX traces under
        # them.
        return call.tree, avals, call.static_key, call.donated, platform, call.homes, call.contexts

    def _check_results(self, trace: context.Tracing, leaves: list[Any]) -> None:
        for leaf in leaves:
            if isinstance(leaf, Deferred):
                raise UsageError(
                    f"the program {self.name!r} returns the future {trace.captured(leaf)} from outside. "
                    f"Pass it as an argument of {self.name!r} instead."
                )
            if aval_of(leaf) is None:
                raise UsageError(
                    f"the program {self.name!r} returns {leaf!r}, {a_type_of(leaf)}; it can return arrays and "
                    f"numbers only. Return it from ordinary Python outside the program."
                )

    def _refuse_captured(self, closed: Any) -> None:
        for const in closed_over(closed):
            # Committed to devices that may not be those of the program. JAX's own constants and uncommitted arrays may
            # go anywhere.
            if isinstance(const, jax.Array) and not isinstance(const, jax.core.Tracer) and const.committed:
                raise UsageError(
                    f"the program {self.name!r} uses the device array {captured_name(self.fn, const)} from outside. "
                    f"Pass it as an argument of {self.name!r} instead."
                )


def captured_name(fn: Callable[..., Any], value: object) -> str:
    """Return the name of the variable, in a function or in a computation it calls, that holds ``value``."""
    pending, seen = [fn], set()
    while pending:
        fn = inspect.unwrap(pending.pop())
        if id(fn) in seen or not hasattr(fn, "__code__"):
            continue
        seen.add(id(fn))
        # Through all that it calls, since the array may be captured several functions deep.
        free = inspect.getclosurevars(fn)
        for name, held in {**free.globals, **free.nonlocals}.items():
            if any(leaf is value for leaf in jax.tree.leaves(held)):
                return repr(name)
            if isinstance(held, (Computation, ProgramTracer)):
                pending.append(held.fn)
            elif inspect.isfunction(held):
                pending.append(held)
    return f"of shape {getattr(value, 'shape', '?')}"


def apart(platform: str) -> AbstractContextManager[Any]:
    """Return a context manager that keeps traces for simulated devices apart from traces for real ones.

    JAX traces a function that the user gave to ``jax.jit`` or ``jax.checkpoint`` once. If it contains computations,
    their meshes would be those of the devices that came first. The metadata set here is part of JAX's cache key.
    """
    return set_xla_metadata(pathways="simulated") if platform == "sim" else nullcontext()


def _needs_value(error: Exception) -> str:
    """Return what the program did with a traced value that only a known value allows; empty if ``error`` is another."""
    if isinstance(error, jax.errors.TracerBoolConversionError):
        return "branches on"
    if not isinstance(error, AttributeError):
        return "turns into a host value"
    is_future = error.name in ("result", "wait", "done", "array")
    return "asks for" if is_future and isinstance(error.obj, jax.core.Tracer) else ""
