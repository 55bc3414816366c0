"""Jitted functions that a block calls, adopted: ``pw.record(adopt=…)`` and ``%%pathways --adopt``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, NamedTuple

import jax
from jax.sharding import Mesh, NamedSharding

from pathways_nb.adopt.adopted_step import AdoptedStep
from pathways_nb.adopt.asked_devices import asked_chip
from pathways_nb.adopt.attached_step import AttachedStep, options_of
from pathways_nb.adopt.call_arguments import CallArguments
from pathways_nb.adopt.devices_here import context_mesh, mesh_here, place_of
from pathways_nb.adopt.step_answers import StepAnswers
from pathways_nb.adopt.step_node import mesh_at, node_of
from pathways_nb.adopt.taken_step import TakenStep, taken_equation
from pathways_nb.adopt.traced_call import argument_structs, mesh_of, resized
from pathways_nb.adopt.watched_calls import watched
from pathways_nb.cost.hardware.chips import Chip
from pathways_nb.errors import PathwaysError, UsageError
from pathways_nb.program.computation import Computation
from pathways_nb.results.run import Run

HERE = "here"
"""In place of a chip: the devices that arguments are on."""
_BESIDE = "ran beside the controller, as no node"


class _Seen(NamedTuple):
    """A function that was called: which step it is, its node, and the mesh that its results are on; None without."""

    step: int | None
    node: Computation | None = None
    mesh: Mesh | None = None


class CalledSteps(Sequence[StepAnswers]):
    """The steps that a block has called, in the order of their first calls.

    Args:
        chip: as in ``pw.adopt``, or ``"here"`` for the devices that arguments are on.
        mesh: as in ``pw.adopt``.
        options: as in ``pw.adopt``.

    Raises:
        UsageError: there is no such chip, or no such preset of options.
    """

    def __init__(
        self,
        chip: str | PathLike[str] | Chip,
        mesh: Mapping[str, int] | None = None,
        options: Mapping[str, Any] | str | None = None,
    ):
        self._chip, self._mesh, self._options = chip, mesh, options_of(options)
        if chip != HERE:
            asked_chip(chip)  # before anything runs
        self._steps: list[StepAnswers] = []
        self._seen: dict[Any, _Seen] = {}
        self.calls: list[int] = []
        """How often each step was called. A function that is called with other layouts is another step."""
        self.refused: dict[str, str] = {}
        """What did not happen to functions, and why, in words that follow their names."""

    def __call__(self, params: Mapping[str, Any], operands: Sequence[Any]) -> Sequence[Any] | None:
        """Adopt a function when it is first called with such arguments; with the devices here, call it as a node.

        Args:
            params: of the ``jit``.
            operands: its arguments.

        Returns:
            The results; None to have the call evaluated as usual.
        """
        leaves = [one if hasattr(one, "shape") else jax.numpy.asarray(one) for one in operands]
        declared = tuple(params["in_shardings"]), tuple(params["out_shardings"]), tuple(params["donated_invars"])
        layouts = tuple(getattr(one, "sharding", None) for one in leaves)
        key = params["jaxpr"], declared, layouts, context_mesh()
        if key not in self._seen:
            self._seen[key] = self._adopted(params, leaves)
        number, node, mesh = self._seen[key]
        if number is not None:
            self.calls[number] += 1
        if node is None or mesh is None:
            return None
        try:
            results = [one.array() for one in node(*leaves)]
        except UsageError as error:  # before anything ran
            self.refused[params["name"]] = f"{_BESIDE}: {error}"
            self._seen[key] = _Seen(number)
            return None
        return [_with_order(one, mesh) for one in results]

    def _adopted(self, params: Mapping[str, Any], leaves: Sequence[Any]) -> _Seen:
        """Adopt a function, if it can be."""
        try:
            node, mesh = self._added(params, leaves)
        except PathwaysError as error:
            self.refused[params["name"]] = f"was called and is not adopted: {error}"
            return _Seen(None)
        self.calls.append(0)
        return _Seen(len(self._steps) - 1, node, mesh)

    def _added(self, params: Mapping[str, Any], leaves: Sequence[Any]) -> tuple[Computation | None, Mesh | None]:
        """Add a function to the steps.

        Returns:
            Its node, None where its calls are left as they are, and the devices that it is on.
        """
        names = params["jaxpr"].jaxpr.debug_info.safe_arg_names(len(leaves))
        arguments = CallArguments(None, tuple(leaves), tuple(names), tuple(range(len(leaves))))
        is_here = self._chip == HERE
        own = mesh_here([*leaves, *params["in_shardings"]]) if is_here else None
        written = own.abstract_mesh if own is not None else mesh_of(arguments, self._mesh)

        def taken(sizes: Mapping[str, int] | None) -> TakenStep:
            mesh = resized(written, sizes)
            return taken_equation(params, argument_structs(names, leaves, mesh), names, mesh)

        if own is None:
            self._steps.append(AdoptedStep(None, taken, self._mesh, self._chip, self._options))
            return None, None
        wanted = own if self._mesh is None else mesh_here([*leaves, *params["in_shardings"]], self._mesh)
        self._steps.append(AttachedStep(None, taken, wanted, self._options))
        if dict(wanted.shape) != dict(own.shape):
            return None, own
        layouts = [
            said.spec if isinstance(said, NamedSharding) else struct.sharding.spec
            for said, struct in zip(params["in_shardings"], taken(None).structs, strict=True)
        ]
        try:
            place = place_of(own, leaves)
        except UsageError as error:
            self.refused[params["name"]] = f"{_BESIDE}: {error}"
            return None, own
        # What the user holds is never taken over: nothing is donated.
        typed, declared = mesh_at(place, own), params["out_shardings"]
        return node_of(params["jaxpr"], params["name"], names, layouts, (), place, typed, declared), own

    def __getitem__(self, at: Any) -> Any:
        return self._steps[at]

    def __len__(self) -> int:
        return len(self._steps)

    def __repr__(self) -> str:
        return f"<{len(self)} adopted: {', '.join(map(repr, self._steps))}>"


def _with_order(array: Any, mesh: Mesh) -> Any:
    """Return a result on the mesh of the user's, which may have the devices of a place in another order.

    Plain JAX takes no arrays with different orders together.
    """
    layout = array.sharding
    if not isinstance(layout, NamedSharding) or layout.mesh == mesh:
        return array
    return jax.device_put(array, NamedSharding(mesh, layout.spec, memory_kind=layout.memory_kind))


@contextlib.contextmanager
def called(run: Run, steps: CalledSteps) -> Iterator[None]:
    """Adopt what the block calls, as ``run.adopted``."""
    run.adopted = steps
    with watched(steps):
        yield
