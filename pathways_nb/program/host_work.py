"""Host work as one equation of a traced program: a primitive that ``make_jaxpr`` sees and never runs.

A computation is a ``jax.jit`` with a name, because JAX's transformations should go through it. Host work is the
opposite: no transformation may go through it, and each rule here says so in plain words. The primitive has the effect
of a host callback, so that JAX neither removes it nor repeats it. ``items`` turns the equation into an item of kind
``"host"``; ``host`` has the public function.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, NoReturn

import jax
import jax.extend.core as jex
import numpy as np
from jax.experimental import io_callback
from jax.interpreters import ad, batching

from pathways_nb.errors import NoAttributeError, UsageError
from pathways_nb.program import specs
from pathways_nb.program.signature import Aval, Signature
from pathways_nb.util.words import a_type_of, counted

Seconds = float | Callable[[], float] | None


@dataclass(frozen=True, eq=False)
class HostWork:
    """What a host node does: a Python function, how its arguments are grouped, and what it must return.

    Args:
        name: of the function.
        fn: takes and returns NumPy arrays.
        place: serial of the virtual slice on whose island's host it runs, and to which its outputs belong.
        call: how the leaves make up the function's arguments.
        tree: of the outputs.
        outputs: shape and dtype of each output.
        paths: where each output stands in what the function returns, for errors; ``""`` for the whole.
        specs: the declared spec of each output; ``None`` if its reader chooses.
        seconds: its declared duration, or a function that returns one for each call; ``None`` if it is unknown.
        line: where the user wrote it.
    """

    name: str
    fn: Callable[..., Any]
    place: int
    call: Signature
    tree: Any
    outputs: tuple[Aval, ...]
    paths: tuple[str, ...]
    specs: tuple[specs.Spec, ...]
    seconds: Seconds
    line: str

    def bind(self, leaves: Sequence[Any]) -> Any:
        """Add the work to the trace under way and return its outputs, traced."""
        made = _host.bind(*leaves, work=self)
        return NoOutput(self.name) if self.tree == _NOTHING else jax.tree.unflatten(self.tree, made)

    def __call__(self, *leaves: np.ndarray) -> list[np.ndarray]:
        """Run the function once.

        Args:
            *leaves: its arguments as NumPy arrays, flattened.

        Returns:
            Its outputs, checked.

        Raises:
            UsageError: it returned something else than it declares.
        """
        args, kwargs = self.call.rebuild(leaves)
        return self.checked(self.fn(*args, **kwargs))

    def checked(self, made: Any) -> list[np.ndarray]:
        """Return what the function returned as arrays.

        A Python number gets the declared dtype; arrays are never converted.

        Raises:
            UsageError: naming the output, what was declared and what came.
        """
        leaves, tree = jax.tree.flatten(made)
        if tree != self.tree:
            raise UsageError(
                f"{self.name} returned {_outline(made)}, and out= declares {_declared(self)}. Return what is "
                f"declared, or declare what is returned."
            )
        return [
            self._array(leaf, aval, path) for leaf, aval, path in zip(leaves, self.outputs, self.paths, strict=True)
        ]

    def _array(self, leaf: Any, aval: Aval, path: str) -> np.ndarray:
        # A Python number has no dtype of its own. An array that came in another one would hide a mistake if it were
        # converted.
        array = np.asarray(leaf, aval.dtype) if isinstance(leaf, (bool, int, float, complex)) else np.asarray(leaf)
        if array.shape != aval.shape or array.dtype != aval.dtype:
            raise UsageError(
                f"{self.name}: output{path} is {_words(array)}, and out= declares {_words(aval)}. Return "
                f"np.asarray(value, np.{aval.dtype}) of that shape, or declare what is returned."
            )
        kept = array.copy()  # the function may use its own array again before this one has reached the devices
        kept.flags.writeable = False
        return kept

    def __repr__(self) -> str:
        return f"<host work {self.name}>"


@jax.tree_util.register_static
@dataclass(frozen=True)
class NoOutput:
    """What a call of host work returns that declares no output: a tree without arrays, as ``None`` is.

    It is not ``None``, so that ``.result()`` of it can say what is missing.
    """

    name: str

    def __getattr__(self, attribute: str) -> NoReturn:
        __tracebackhide__ = True
        if attribute.startswith("_"):
            raise AttributeError(attribute, name=attribute, obj=self)
        raise NoAttributeError(
            f"{self.name}(…).{attribute}: {self.name} is host work without out=, so a call returns no future. Declare "
            f"what it returns, pw.host({self.name}, on=place, out=jax.ShapeDtypeStruct((8,), jnp.float32)), or an "
            f"example of it. To wait for its end, call it inside `with pw.record():`."
        )

    def __bool__(self) -> bool:
        return False

    def __repr__(self) -> str:
        return f"<no output of {self.name}>"

    def _ipython_display_(self) -> None:
        """Show nothing below a cell that ends with the call."""


_NOTHING = jax.tree.structure(None)

_host = jex.Primitive("pathways_host")
_host.multiple_results = True


def host_work(eqn: Any) -> HostWork | None:
    """Return the host work of an equation, or ``None`` if it is another equation."""
    return eqn.params["work"] if eqn.primitive is _host else None


@cache
def _effects() -> Any:
    """Return the effect of a host callback, which keeps JAX from removing or repeating an equation."""
    return jax.make_jaxpr(lambda: io_callback(lambda: None, None))().effects


def _abstract(*operands: Any, work: HostWork) -> Any:
    return [jax.core.ShapedArray(aval.shape, aval.dtype) for aval in work.outputs], _effects()


def _jvp(primals: Sequence[Any], tangents: Sequence[Any], *, work: HostWork) -> Any:
    # A zero tangent belongs to an argument that does not depend on what is differentiated, such as the batch.
    through = any(not isinstance(tangent, ad.Zero) for tangent in tangents)
    if through and any(jax.numpy.issubdtype(aval.dtype, jax.numpy.inexact) for aval in work.outputs):
        raise UsageError(
            f"{work.name} ({work.line}) is host work, which JAX cannot differentiate, and its arguments depend on what "
            f"is differentiated. Pass jax.lax.stop_gradient(argument): then its outputs count as constants. Or make it "
            f"a computation with pw.jit."
        )
    made = _host.bind(*primals, work=work)
    # Constants to the derivative: they depend on nothing that is differentiated, or are whole numbers.
    return made, [ad.Zero(jax.typeof(one).to_tangent_aval()) for one in made]


def _batch(operands: Sequence[Any], dimensions: Sequence[Any], *, work: HostWork) -> Any:
    raise UsageError(
        f"{work.name} ({work.line}) is host work, which runs once for each call of the program, and jax.vmap would "
        f"repeat it. Call it outside the function that is mapped, with the whole batch, and pass what it returns."
    )


def _run(*operands: Any, work: HostWork) -> Any:
    raise UsageError(f"{work.name} is host work: call it in a @pw.program or in a cell.")


def _words(value: Any) -> str:
    return f"{value.dtype}[{','.join(map(str, value.shape))}]"


def _declared(work: HostWork) -> str:
    return _outline(jax.tree.unflatten(work.tree, [_words(aval) for aval in work.outputs]))


def _outline(tree: Any) -> str:
    """Return a tree in words: its arrays as types, and its structure."""
    if tree is None:
        return "nothing"
    if isinstance(tree, (tuple, list)):
        return f"a {type(tree).__name__} of {counted(len(tree), 'output')}"
    if isinstance(tree, dict):
        return f"a dictionary with {', '.join(map(repr, tree)) or 'nothing'}"
    if isinstance(tree, str):
        return tree
    return _words(tree) if hasattr(tree, "shape") and hasattr(tree, "dtype") else a_type_of(tree)


_host.def_impl(_run)
_host.def_effectful_abstract_eval(_abstract)
ad.primitive_jvps[_host] = _jvp
batching.primitive_batchers[_host] = _batch
