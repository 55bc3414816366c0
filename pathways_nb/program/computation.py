"""Computations: compiled functions that carry their place (Pathways, section 3).

A computation is a named ``jax.jit``: its name carries the virtual slice, and its shardings stand on the slice's
abstract mesh. Traced inside a program it is one equation, so JAX's own transformations compose across places, and no
second system of transformations is needed. The name is the carrier because it is what every transformation keeps.
``jit`` code sees whole arrays; ``shard_map`` code sees one shard and may use collectives.
"""

from __future__ import annotations

import functools
import itertools
import re
import weakref
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import jax
from jax.sharding import AbstractMesh, NamedSharding, PartitionSpec

from pathways_nb.errors import UsageError
from pathways_nb.plan import source_lines
from pathways_nb.plan.function_names import function_name
from pathways_nb.plan.virtual_slice import VirtualSlice
from pathways_nb.program import context, declared_cost, specs
from pathways_nb.program.edge import cross
from pathways_nb.program.models import with_static_parts, without_static_parts
from pathways_nb.program.signature import Signature
from pathways_nb.program.static_arguments import Statics
from pathways_nb.util.option_names import checked_options
from pathways_nb.util.unique import Unique
from pathways_nb.util.words import a_type_of, counted

Form = Literal["jit", "shard_map"]
_NAME = re.compile(r"pw__(\d+)(?:~([^_#]+))?(?:#(\d+))?__(.*)", re.DOTALL)
_options: list[dict[str, Any]] = [{}]
"""All compiler options in use. Names carry their positions, because JAX refuses options on a jit within another."""

_ON = "the virtual slice to run on, such as on=pw.virtual_slice(4)"
_SPECS = "which axes of the slice divide each array, such as pw.P('x'), or pw.P() for none"
_serials = itertools.count()
NOT_PICKLED = (
    "cannot be pickled: it holds Python functions and their traces. Define it in a module that the other process "
    "imports, and call it there."
)


class Computation(Unique):
    """A function bound to a virtual slice, made by ``pw.jit`` or ``pw.shard_map``.

    A call outside a program returns futures at once. A call inside a ``pw.program`` is one node of its graph.
    """

    _not_pickled = NOT_PICKLED
    seconds: float | None = None  # declared (``pw.work``)
    compiler_options: Mapping[str, Any] | None = None
    """Options of XLA for its node, as in ``jax.jit``; the equation's name carries them, too."""

    def __init__(
        self,
        fn: Callable[..., Any],
        form: Form,
        place: VirtualSlice,
        in_specs: Any,
        out_specs: Any,
        statics: Statics,
        **options: Any,
    ):
        self.fn, self.form, self.place, self.options = fn, form, place, options
        self.statics = statics.bound_to(fn)
        self.in_specs, self.out_specs = in_specs, out_specs
        self.line = source_lines.user_line()
        functools.update_wrapper(self, fn, updated=())
        self.name = function_name(fn)
        place.take_variable_name(source_lines.users_variables())
        words = ("in_shardings", "out_shardings") if form == "jit" else ("in_specs", "out_specs")
        self._in_option, self._out_option = words
        specs.check_tree(in_specs, words[0], self.name, place)
        specs.check_tree(out_specs, words[1], self.name, place)
        self.serial = next(_serials)
        self._jitted: dict[Any, Callable[..., Any]] = {}
        self._leaf_names: dict[Any, list[str]] = {}
        self.staged: dict[Any, Any] = {}
        """Calls made outside programs, traced at their lines, by signature."""
        self.batch_programs: OrderedDict[Any, Any] = OrderedDict()
        """Programs made of batched calls of which this is the newest computation."""
        self.known_calls: weakref.WeakKeyDictionary[Any, dict[Any, Any]] = weakref.WeakKeyDictionary()
        """By a session's epoch, what its calls have found; see ``session.calls.known_calls``."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Add one node to the program under trace; outside any program, run.

        Returns:
            The outputs: traced values inside a program, futures outside.
        """
        __tracebackhide__ = True
        trace = context.tracing()
        if trace is None:
            return context.call_outside(self, args, kwargs)
        if trace.inside:
            return self._inline(trace, args, kwargs)
        return self.stage(trace, self.signature(args, kwargs))

    def signature(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Signature:
        """Return the call's arguments, flattened, with static ones set apart."""
        return Signature.of(self.statics, args, kwargs, self.name)

    def names_of(self, call: Signature) -> list[str]:
        """Return what errors call the leaves of a call, made once for calls of the same tree."""
        key = call.tree, call.static_key
        if key not in self._leaf_names:
            self._leaf_names[key] = call.names
        return self._leaf_names[key]

    def stage(self, trace: context.Tracing, call: Signature) -> Any:
        """Add the call to the trace under way as one equation.

        Args:
            trace: the trace under way.
            call: the arguments, whose leaves may be tracers.

        Returns:
            The outputs, traced.
        """
        trace.refuse_futures(call)
        # A place counts as used even where nothing reads what is computed there, so it is noted before dead code goes.
        trace.places[self.place.serial] = self.place
        mesh = trace.mesh_of(self.place)
        leaf_specs = tuple(self._leaf_specs(call))
        # JAX caches a trace by its function, so one function for each of what else decides the trace.
        key = (call.tree, call.static_key, mesh, leaf_specs, call.contexts)
        if key not in self._jitted:
            self._jitted[key] = self._build(call, mesh, leaf_specs)
        self.check_arguments(call, leaf_specs)
        try:
            return without_static_parts(self._jitted[key](*call.leaves))
        except Exception as error:
            call.explain(error, f"the computation {self.name!r} on {self.place.label} ({self.place.axes_text})")
            raise

    def cost_of(self, call: Signature) -> declared_cost.DeclaredCost:
        """Return what a call is declared to cost; the equation's name carries it to the nodes."""
        return self.seconds

    def check_arguments(self, call: Signature, leaf_specs: Sequence[specs.Spec]) -> None:
        """Refuse arguments that their specs do not divide, or that JAX would hold as other numbers.

        Args:
            call: the arguments.
            leaf_specs: the declared partition of each.

        Raises:
            ShardingError: naming the argument, its shape and the spec.
            NarrowingError: naming the argument and the number.
        """
        call.refuse_narrowed()
        for index, (leaf, spec) in enumerate(zip(call.leaves, leaf_specs, strict=True)):
            if any(specs.problems(jax.numpy.shape(leaf), spec, self.place)):
                # ``names`` walks the arguments again, so only on the way to an error.
                what = f"{self.name}: {call.names[index]}"
                specs.check_leaf(jax.numpy.shape(leaf), spec, self.place, what, self._in_option)

    def _inline(self, trace: context.Tracing, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        outer = trace.inside[-1]
        # At the same place it is a part of the other's body; elsewhere it would need a node within a node.
        if outer.place is not self.place:
            raise UsageError(
                f"{self.name} on {self.place.label} is called inside {outer.name} on {outer.place.label}: a node is "
                f"on one place. Call both from a @pw.program."
            )
        return self.fn(*args, **kwargs)

    def _leaf_specs(self, call: Signature) -> list[specs.Spec]:
        prefix, dynamic = self.in_specs, call.dynamic_args
        if isinstance(prefix, tuple) and not specs.is_spec(prefix) and len(prefix) != len(dynamic):
            raise specs.ShardingError(
                f"{self.name}: {self._in_option} has {counted(len(prefix), 'entry')} for "
                f"{counted(len(dynamic), 'argument')}; give one pw.P for all, or one for each."
            )
        positional = specs.spread(prefix, dynamic, self._in_option, self.name)
        # By keyword: specs are positional, as in ``jax.jit``, so these are replicated.
        rest: list[specs.Spec] = [None] * (len(call.leaves) - len(positional))
        return [spec or PartitionSpec() for spec in (*positional, *rest)]

    def _build(self, call: Signature, mesh: AbstractMesh, leaf_specs: tuple[specs.Spec, ...]) -> Callable[..., Any]:
        declared = declared_cost.written(self.cost_of(call))
        # The jitted function outlives the call and must not keep its arrays.
        call = call.without_leaves()
        # Without a cycle, a computation of a cell that is run again goes at once, and its place gives its devices back.
        owner = weakref.ref(self)

        def body(*leaves: Any) -> Any:
            computation = owner()
            assert computation is not None, "only its own call traces it"
            return computation._trace_body(call, mesh, leaf_specs, leaves)

        if self.compiler_options:
            declared += f"#{_position(self.compiler_options)}"
        body.__name__ = body.__qualname__ = f"pw__{self.place.serial}{declared}__{self.name}"
        place_on = functools.partial(NamedSharding, mesh)
        out_shardings = jax.tree.map(
            lambda s: None if s is None else place_on(s), self.out_specs, is_leaf=specs.is_spec
        )
        return jax.jit(
            body,
            in_shardings=tuple(None if spec is None else place_on(spec) for spec in leaf_specs),
            out_shardings=out_shardings,
            donate_argnums=call.donated,
            # Specs and donated arguments are counted by position, also those of arguments that nobody reads.
            keep_unused=True,
        )

    def _trace_body(self, call: Signature, mesh: AbstractMesh, leaf_specs: Any, leaves: tuple[Any, ...]) -> Any:
        leaves = tuple(map(cross, leaves))
        args, kwargs = call.rebuild(leaves)
        with context.inside(context.TracedBody(self.name, self.place)), jax.sharding.use_abstract_mesh(mesh):
            out = self.fn(*args, **kwargs) if self.form == "jit" else self._per_shard(call, leaf_specs, leaves)
        out = with_static_parts(out)
        self._check_outputs(out)  # JAX's own error on an uneven sharding names neither its path nor the place
        return jax.tree.map(cross, out)

    def _per_shard(self, call: Signature, leaf_specs: tuple[Any, ...], leaves: tuple[Any, ...]) -> Any:
        def shard_body(*shards: Any) -> Any:
            args, kwargs = call.rebuild(shards)
            return self.fn(*args, **kwargs)

        shard_body.__name__ = self.name  # in JAX's own errors
        return jax.shard_map(shard_body, in_specs=leaf_specs, out_specs=self.out_specs, **self.options)(*leaves)

    def _check_outputs(self, out: Any) -> None:
        flat = jax.tree_util.tree_leaves_with_path(out)
        for (path, leaf), spec in zip(
            flat, specs.spread(self.out_specs, out, self._out_option, self.name), strict=True
        ):
            what = f"{self.name}: output{jax.tree_util.keystr(path)}"
            specs.check_leaf(jax.numpy.shape(leaf), spec, self.place, what, self._out_option)

    def __repr__(self) -> str:
        return f"<computation {self.name} on {self.place.label}>"


class ComputationName(NamedTuple):
    """What a computation's equation name says: serial of its place, declared cost, compiler options, plain name."""

    place: int
    cost: declared_cost.DeclaredCost
    compiler_options: Mapping[str, Any]
    name: str


def parse_name(equation: str) -> ComputationName | None:
    """Return the parts of an equation's name if it is a computation's, else ``None``."""
    # A user's own jitted function has another name, and stays an ordinary operation.
    match = _NAME.fullmatch(equation)
    if match is None:
        return None
    return ComputationName(int(match[1]), declared_cost.read(match[2]), _options[int(match[3] or 0)], match[4])


def _position(options: Mapping[str, Any]) -> int:
    """Return the position of compiler options among all, which it joins if it is new."""
    # Never removed: names in traces that JAX keeps refer to them by position.
    if dict(options) not in _options:
        _options.append(dict(options))
    return _options.index(dict(options))


def _make(
    fn: Callable[..., Any] | None, form: Form, on: VirtualSlice, compiler_options: Any, *rest: Any, **options: Any
) -> Any:
    if not isinstance(on, VirtualSlice):
        raise UsageError(f"on={on!r} is {a_type_of(on)}; pass a pw.virtual_slice(...).")
    if not isinstance(compiler_options, Mapping | None):
        raise UsageError(
            f"compiler_options={compiler_options!r} is {a_type_of(compiler_options)}; give a dictionary, such as "
            '{"xla_disable_hlo_passes": "cse_barrier_expander"}, or a published one by its name, '
            'pathways_nb.compilers.presets.preset("nvidia-maxtext").'
        )

    def make(fn: Callable[..., Any]) -> Computation:
        made = Computation(fn, form, on, *rest, **options)
        made.compiler_options = compiler_options
        return made

    if fn is not None and not callable(fn):
        raise UsageError(f"pw.{form}({fn!r}, ...) needs a function, got {a_type_of(fn)}.")
    return make if fn is None else make(fn)


@checked_options(on=_ON)
def jit(
    fn: Callable[..., Any] | None = None,
    *,
    on: VirtualSlice,
    in_shardings: Any = None,
    out_shardings: Any = None,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    donate_argnums: int | Iterable[int] = (),
    donate_argnames: str | Iterable[str] = (),
    compiler_options: Mapping[str, Any] | None = None,
) -> Any:
    """Bind ``fn``, which sees whole arrays, to a virtual slice (Pathways, section 3). Also a decorator.

    Args:
        fn: the function; leave it out to use ``@pw.jit(on=place)``.
        on: the virtual slice to run on.
        in_shardings: a ``pw.P`` over the slice's axes or a prefix tree of them, as in ``jax.jit``; by default
            replicated.
        out_shardings: the same for the outputs; by default the compiler's choice.
        static_argnums: as in ``jax.jit``.
        static_argnames: as in ``jax.jit``.
        donate_argnums: as in ``jax.jit``.
        donate_argnames: as in ``jax.jit``.
        compiler_options: options of XLA for this computation alone, as in ``jax.jit``; the simulator ignores them. One
            that holds for a single platform is named so, ``"cpu:xla_disable_hlo_passes"``, and ignored elsewhere.

    Returns:
        The computation, or a decorator that makes one.

    Raises:
        ShardingError: a spec names an axis the slice lacks (here), or does not divide an argument (at the call).
        UsageError: ``on`` is missing or is not a virtual slice, or there is no such option.
    """
    statics = Statics.of(fn, static_argnums, static_argnames, donate_argnums, donate_argnames)
    return _make(fn, "jit", on, compiler_options, in_shardings, out_shardings, statics)


@checked_options(on=_ON, in_specs=_SPECS, out_specs=_SPECS)
def shard_map(
    fn: Callable[..., Any] | None = None,
    *,
    on: VirtualSlice,
    in_specs: Any,
    out_specs: Any,
    static_argnums: int | Iterable[int] = (),
    static_argnames: str | Iterable[str] = (),
    donate_argnums: int | Iterable[int] = (),
    donate_argnames: str | Iterable[str] = (),
    check_vma: bool = True,
    compiler_options: Mapping[str, Any] | None = None,
) -> Any:
    """Bind ``fn``, which sees one shard and may use collectives over the slice's axes, to a virtual slice.

    Args:
        fn: the function; leave it out to use as a decorator.
        on: the virtual slice to run on.
        in_specs: a ``pw.P`` or a tree of them, as in ``jax.shard_map``.
        out_specs: a ``pw.P`` or a tree of them, as in ``jax.shard_map``.
        static_argnums: as in ``jax.jit``.
        static_argnames: as in ``jax.jit``.
        donate_argnums: as in ``jax.jit``.
        donate_argnames: as in ``jax.jit``.
        compiler_options: as for ``pw.jit``.
        check_vma: as in ``jax.shard_map``.

    Returns:
        The computation, or a decorator that makes one.

    Raises:
        ShardingError: as for ``pw.jit``.
        UsageError: as for ``pw.jit``.
    """
    statics = Statics.of(fn, static_argnums, static_argnames, donate_argnums, donate_argnames)
    return _make(fn, "shard_map", on, compiler_options, in_specs, out_specs, statics, check_vma=check_vma)
