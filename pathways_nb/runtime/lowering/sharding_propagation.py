"""Guesses the layout of arrays for which no computation declares a spec, from the arrays they are combined with.

An optimizer's state reaches ordinary operations only. Before its first step it lies on no device, and it is brought as
the compiler would lay it out together with parameters and gradients (GSPMD, section 3.5): operands and outputs of an
elementwise operation share one layout, whichever of them is known; other operations pass layouts forward only. A wrong
guess is harmless: it costs one more compilation, and from then on the state lies as the compiler left it.

JAX can let the compiler choose the layout of an input, but only node by node and on real devices. This module serves
the simulator as well and sees all nodes of a place at once.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jax.sharding import PartitionSpec

from pathways_nb.cost.jaxpr.node_work import layouts_of
from pathways_nb.cost.jaxpr.primitives import CONTROL, op_class_of
from pathways_nb.cost.jaxpr.splits import Split, propagate, read_spec
from pathways_nb.jaxpr.flat import Walk, called
from pathways_nb.program.build import Code
from pathways_nb.program.items import Const, ProgramItem
from pathways_nb.program.specs import trimmed

Shape = tuple[int, ...]


@dataclass(frozen=True, eq=False, slots=True)
class _Array:
    """An array within an operation; the program's own values are known by their numbers."""

    shape: Shape
    is_constant: bool = False
    """Whether its value is known; each reader may then have it in a layout of its own."""


@dataclass
class Propagation(Walk[Hashable]):
    """The layouts of one place's values, as a union-find of arrays that share a layout.

    Args:
        sizes: devices along each axis of the place.
        shapes: of the program's values, by id.
    """

    sizes: Mapping[str, int]
    shapes: Sequence[Shape]
    _alike: dict[Hashable, Hashable] = field(default_factory=dict)
    """For an array, another with the same layout."""
    _splits: dict[Hashable, Split] = field(default_factory=dict)
    _others: list[tuple[Any, list[Hashable], list[Hashable]]] = field(default_factory=list)
    """Equations in order, with their inputs and outputs, through which layouts pass forward."""

    def add(self, codes: Iterable[Code], elsewhere: Mapping[int, Any]) -> None:
        """Add the nodes of the place, in order: what they declare is known, and the rest follows from it.

        Args:
            codes: of the nodes.
            elsewhere: specs of values, declared at other places of the same shape.
        """
        items = [item for code in codes for item in code.items]
        for item in items:
            if item.place is None:
                inputs = [self.constant(x.value, x.value) if isinstance(x, Const) else x for x in item.inputs]
                self._tie_all(item.outputs, self.run(item.jaxpr, inputs))
        computations = [item for item in items if item.place is not None]
        for item in computations:
            self._declare(item.inputs, item.in_specs)
        for item in computations:
            self._declare(item.outputs, item.out_specs)
        here = list({value for item in items for value in item.values()}.intersection(elsewhere))
        self._declare(here, [elsewhere[value] for value in here])
        for item in computations:
            self._estimate(item)
        # Each pass may tell an operand of a later pass, so until nothing more is found.
        while self._forward():
            pass

    def spec(self, value: int) -> PartitionSpec:
        """Return the layout of a value; replicated if nothing is known."""
        return trimmed(self._splits.get(self._root(value)))

    # ---- arrays that share a layout

    def _shape(self, array: Hashable) -> Shape:
        return array.shape if isinstance(array, _Array) else self.shapes[array]  # type: ignore[call-overload]

    def _root(self, array: Hashable) -> Hashable:
        while (other := self._alike.get(array, array)) != array:
            # Halve the path on the way, so that long chains of elementwise operations stay quick.
            self._alike[array] = array = self._alike.get(other, other)
        return array

    def _tie(self, one: Hashable, other: Hashable) -> None:
        if any(isinstance(array, _Array) and array.is_constant for array in (one, other)):
            return
        shape = self._shape(one)
        # A scalar has no layout, and one that is broadcast says nothing of the array.
        if shape and shape == self._shape(other):
            self._alike[self._root(one)] = self._root(other)

    def _tie_all(self, ones: Iterable[Hashable], others: Iterable[Hashable]) -> None:
        for one, other in zip(ones, others, strict=True):
            self._tie(one, other)

    def constant(self, aval: Any, value: Any) -> _Array:
        """Return an array that takes the layout each reader wants."""
        return _Array(tuple(getattr(aval, "shape", ())), is_constant=True)

    def equation(self, eqn: Any, inputs: list[Hashable]) -> list[Hashable]:
        """Join the arrays that share a layout, keep the equation for the others, and return its outputs."""
        name, body = eqn.primitive.name, called(eqn)
        outputs: list[Hashable] = [_Array(tuple(getattr(var.aval, "shape", ()))) for var in eqn.outvars]
        if body is not None:
            self._tie_all(outputs, self.run(body, inputs))
        elif name == "cond":
            for branch in eqn.params["branches"]:
                self._tie_all(outputs, self.run(branch, inputs[1:]))
        elif name not in CONTROL:
            if op_class_of(name) == "elementwise":
                for array in (*inputs, *outputs[1:]):
                    self._tie(array, outputs[0])
            self._others.append((eqn, inputs, outputs))  # shapes may differ: a reshape
        return outputs

    # ---- what is known, and what follows

    def _declare(self, values: Iterable[Any], specs: Iterable[Any]) -> None:
        for value, spec in zip(values, specs, strict=True):
            if spec is not None and not isinstance(value, Const):
                self._splits.setdefault(self._root(value), read_spec(spec, len(self._shape(value))))

    def _estimate(self, item: ProgramItem) -> None:
        """Set the outputs whose layout is the compiler's choice, by the same rules as the simulator."""
        if all(spec is not None or not self.shapes[x] for x, spec in zip(item.outputs, item.out_specs, strict=True)):
            return
        found = layouts_of(item.jaxpr, self.sizes, item.in_specs)
        for value, split in zip(item.outputs, found, strict=True):
            self._learn(value, split)

    def _forward(self) -> bool:
        """Pass layouts through the equations once, and return whether any was found."""
        before = len(self._splits)
        for eqn, inputs, outputs in self._others:
            known = [self._splits.get(self._root(array)) for array in inputs]
            # Replicated operands say nothing: the output may still get a layout from its readers.
            if not any(any(split) for split in known if split):
                continue
            operands = [
                (shape, split if split is not None else ((),) * len(shape))
                for shape, split in zip(map(self._shape, inputs), known, strict=True)
            ]
            for output in outputs:
                if self._root(output) not in self._splits:
                    self._learn(output, propagate(eqn.primitive.name, eqn.params, operands, self._shape(output)))
        return len(self._splits) > before

    def _learn(self, array: Hashable, split: Split) -> None:
        """Keep a layout that was found, as far as it divides the array."""
        shape = self._shape(array)
        fitting = tuple(
            axes if n % math.prod(self.sizes.get(axis, 1) for axis in axes) == 0 else ()
            for n, axes in zip(shape, split, strict=True)
        )
        if any(fitting):
            self._splits.setdefault(self._root(array), fitting)
