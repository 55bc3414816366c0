"""Random programs of several islands and random calls of them, for whichever controller is current."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

import pathways_nb as pw

v = np.arange(8, dtype=np.float32)
PLACES = [
    pw.virtual_slice(2, island=0, name="left"),
    pw.virtual_slice(2, island=1, name="right"),
    pw.virtual_slice(1, island=0, name="left 0"),
    pw.virtual_slice(1, island=0, name="left 1"),
    pw.virtual_slice(1, island=1, name="right 0"),
]
"""Two whole islands of two devices, and parts of them."""


def _on(place: pw.VirtualSlice) -> list[pw.Computation]:
    def both(one: Any, other: Any) -> Any:
        return one + other

    def halves(x: Any) -> Any:
        return x * 0.5, x - 1

    def summed(x: Any) -> Any:
        return x + jax.lax.psum(x, "x")

    def whole(x: Any) -> Any:
        return x.sum() + x

    split = pw.P("x")
    return [
        *(pw.jit(fn, on=place, in_shardings=split, out_shardings=split) for fn in (both, halves)),
        pw.jit(whole, on=place),
        pw.shard_map(summed, on=place, in_specs=split, out_specs=split),
    ]


COMPUTATIONS = {place: _on(place) for place in PLACES}


def place_all(controller: pw.Controller) -> None:
    """Every place its devices, the same ones on any two islands of two."""
    for place in PLACES:
        controller.mesh_of(place)


def random_program(rng: random.Random, name: str, islands: Sequence[int] = (0, 1)) -> Any:
    """A program of two arguments: a few computations on these islands that read what was before, in any pattern."""
    places = [place for place in PLACES if place.island in islands]
    calls = [
        (rng.choice(COMPUTATIONS[rng.choice(places)]), rng.random(), rng.random()) for _ in range(rng.randint(1, 6))
    ]
    picked = [rng.random() for _ in range(rng.randint(1, 4))]
    adds = rng.random() < 0.3

    def body(x: Any, y: Any) -> Any:
        values = [x, y]
        for computation, first, second in calls:
            operands = [values[int(first * len(values))], values[int(second * len(values))]]
            made = computation(*operands[: 2 if computation.name == "both" else 1])
            values += made if isinstance(made, tuple) else [made]
        if adds:
            values.append(values[-1] * 3 + 1)
        return {"some": [values[int(at * len(values))] for at in picked], "last": values[-1]}

    donated = rng.choice(((), (), (0,), (0, 1)))
    return pw.program(body, name=name, donate_argnums=donated)


@dataclass(frozen=True)
class Call:
    """A program called for a client; arguments are arrays, or results of earlier calls, by number."""

    program: int
    client: str
    arguments: tuple[int | None, ...]


def random_calls(
    rng: random.Random, programs: Sequence[Any], clients: Sequence[Sequence[str]], count: int
) -> list[Call]:
    """So many calls, each result of which may be an argument of later ones; who is donated is used no more.

    ``clients`` says who may call each program; it reads results of programs that the same clients may call.
    """
    made, usable = list[Call](), list[tuple[int, int]]()
    for number in range(count):
        program = rng.randrange(len(programs))
        near = [one for one in usable if clients[made[one[0]].program] == clients[program]]
        arguments = [rng.choice([None, *near]) for _ in range(2)]
        if arguments[0] is not None and arguments[0] == arguments[1]:
            arguments[1] = None
        donated = programs[program].statics.donated_numbers
        usable = [one for one in usable if one not in [arguments[at] for at in donated]]
        made.append(Call(program, rng.choice(clients[program]), tuple(arguments)))  # type: ignore[arg-type]
        usable += [(number, at) for at in range(2)]
    return made


def call_all(
    programs: Sequence[Any], calls: Sequence[Call], clients: dict[str, Callable[[], Any]]
) -> list[list[pw.Future]]:
    """Call them one after another, without waiting; the futures of each."""
    results: list[list[pw.Future]] = []
    for call in calls:
        given = [v if at is None else results[at[0]][at[1]] for at in call.arguments]  # type: ignore[index]
        with clients[call.client]() if call.client else contextlib.nullcontext():
            made = jax.tree.leaves(programs[call.program](*given))
        results.append([made[0], made[-1]])
    return results
