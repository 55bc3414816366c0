"""Figures 5 to 7: tiny computations one after another, on one gang of all devices or from stage to stage.

A computation is a scalar all-reduce and an addition. OpByOp is a call for each, Chained one program of 128 nodes, Fused
one node of 128; JAX runs the same with its own Python process on each host. The baseline of Figures 5 and 6 is the
simplest formula: a call's cost proportional to hosts, through the larger point of Figure 6.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from functools import cache, partial
from typing import Any, Literal

import jax
import jax.numpy as jnp

import pathways_nb as pw
from pathways_nb.bench._paper.found import Found
from pathways_nb.bench._paper.pods import (
    JAX_CALL,
    PAPER,
    Line,
    PodSetting,
    in_turn,
    line,
    multi_controller,
    side_by_side,
)
from pathways_nb.cost.hardware.host_costs import HOST

LENGTH = int(PAPER["figure 5"]["chain"]["value"])
"""Computations of a chain."""
SIZES = tuple(2**k for k in range(10))
"""Hosts of the curves of Figures 5 and 7, with 4 cores each."""
LONG, LONG_STAGES = 4e-3, 32
"""Seconds of a stage that lasts longer than the dispatch of so many stages, and their number."""
DISPATCH = ("parallel", "sequential")
"""Both modes, as for ``pw.attach``."""
_CALLS = 12
"""Calls in one simulation."""
_MATCHES = 0.99
"""Share of JAX's throughput that counts as the same."""
_SCALAR = jax.ShapeDtypeStruct((), jnp.float32)
Form = Literal["OpByOp", "Chained", "Fused"]
System = Literal["Pathways", "JAX"]


def _add(place: pw.VirtualSlice) -> pw.Computation:
    """Return the tiny computation: a scalar all-reduce and an addition."""
    return pw.shard_map(lambda x: jax.lax.psum(x, place.axes) + 1.0, on=place, in_specs=pw.P(), out_specs=pw.P())


def chain(devices: int, form: Form) -> pw.Program:
    """Return a program that is called once for each computation (OpByOp) or once for a whole chain.

    Args:
        devices: of the gang.
        form: OpByOp, Chained or Fused.
    """
    add = _add(pw.virtual_slice(devices))

    def body(x: Any) -> Any:
        for _ in range(1 if form == "OpByOp" else LENGTH):
            x = add(x)
        return x

    return pw.program(body, name=form, fuse=form == "Fused")


@cache
def seconds_of(form: Form, hosts: int, system: System) -> float:
    """Return the seconds of each computation of Figure 5.

    Args:
        form: OpByOp, Chained or Fused.
        hosts: number of hosts, with 4 cores each.
        system: Pathways, or JAX without a controller.
    """
    pod = PodSetting(hosts)
    with pod.attached(line().host("client", hosts) if system == "Pathways" else multi_controller()):
        seconds = in_turn(chain(pod.devices, form), _SCALAR, _CALLS)
    return seconds / (1 if form == "OpByOp" else LENGTH)


def _rate(form: Form, system: System, hosts: int) -> float:
    """Return computations per second."""
    return 1 / seconds_of(form, hosts, system)


def _proportional(hosts: int) -> float:
    """Return computations per second if a call costs in proportion to hosts what Figure 6's larger point says."""
    return LENGTH / (PAPER["figure 6"]["512 hosts"]["value"] * hosts / 512)


def curves(sizes: tuple[int, ...] = SIZES) -> dict[str, list[float]]:
    """Return Figure 5: computations per second over hosts, for each system and form."""
    forms: Mapping[System, tuple[Form, ...]] = {"Pathways": ("OpByOp", "Chained", "Fused"), "JAX": ("OpByOp", "Fused")}
    return {
        f"{system} {form}": [_rate(form, system, hosts) for hosts in sizes]
        for system, of_system in forms.items()
        for form in of_system
    }


def _crossing(above: Callable[[int], float], below: Callable[[int], float], share: float = 1.0) -> int:
    """Return the most cores at which ``above`` is at least ``share`` of ``below``, to a sixteenth; 0 if at none.

    Args:
        above: rate of one curve by number of hosts.
        below: rate of the other curve.
        share: of the other curve that must be reached.
    """

    def holds(hosts: int) -> bool:
        # The tolerance keeps rounding from deciding where both curves are equal.
        return above(hosts) >= share * below(hosts) * (1 - 1e-6)

    last = max((hosts for hosts in SIZES if holds(hosts)), default=0)
    finer = range(last, min(2 * last, SIZES[-1] + 1), max(1, last // 16))
    return 4 * max(itertools.takewhile(holds, finer), default=0)


def _fused() -> Found:
    """Return up to how many cores Fused keeps up; the baseline is a call's cost proportional to cores."""
    pathways, jax = partial(_rate, "Fused", "Pathways"), partial(_rate, "Fused", "JAX")
    return Found(
        _crossing(pathways, jax, 0.95),
        _crossing(lambda hosts: min(_proportional(hosts), jax(hosts)), jax, 0.95),
        f"on 1024 cores a chain lasts {LENGTH / jax(256) * 1e3:.1f} ms by the torus' formula, a call "
        f"{line().at(256) * 1e3:.1f} ms; and on 4 cores Fused has only {pathways(1) / jax(1):.0%} of JAX's rate",
    )


def _chained() -> Found:
    """Return up to how many cores Chained is ahead of JAX's OpByOp."""
    pathways, jax = partial(_rate, "Chained", "Pathways"), partial(_rate, "OpByOp", "JAX")
    slower = _crossing(pathways, lambda hosts: min(1 / HOST.call, jax(hosts)))
    return Found(
        _crossing(pathways, jax),
        _crossing(_proportional, jax),
        f"if JAX's call lasts {JAX_CALL * 1e6:.1f} µs; if it were {HOST.call * 1e6:.0f} µs, up to {slower} cores",
    )


def figure_5() -> dict[str, Found]:
    """Return up to how many cores a chain hides its call."""
    one, chain = (_rate(form, "Pathways", SIZES[-1]) for form in ("OpByOp", "Chained"))
    says = "a call for 128 computations in place of one for each; TF and Ray are not modelled"
    return {
        "fused": _fused(),
        "chained": _chained(),
        "chained over OpByOp, 2048 cores": Found(chain / one, float(LENGTH), says),
    }


def smallest(pod: PodSetting, fitted: Line) -> float:
    """Return Figure 6: the seconds of the smallest computation at which calls of one keep up with JAX's.

    Args:
        pod: the machine.
        fitted: cost of a call by hosts.
    """

    def keeps_up(seconds: float) -> bool:
        place = pw.virtual_slice(pod.devices)
        program = pw.program(pw.work(seconds, on=place), name="one")
        with pod.attached(fitted.host("client", pod.hosts)):
            rate = in_turn(program, _SCALAR, _CALLS)
        with pod.attached(multi_controller()):
            return in_turn(program, _SCALAR, _CALLS) >= _MATCHES * rate

    low, high = 1e-4, 1.0
    while high > 1.002 * low:
        # Bisection of the logarithm: the range spans four orders of magnitude, and the tolerance is relative.
        middle = math.sqrt(low * high)
        low, high = (low, middle) if keeps_up(middle) else (middle, high)
    return high


def figure_6() -> dict[str, Found]:
    """Return both points, which are fitted; the baseline is a cost proportional to hosts, through the larger one."""
    pods = {"16 hosts": PodSetting(16, 8), "512 hosts": PodSetting(512, 4)}
    largest = PAPER["figure 6"]["512 hosts"]["value"]
    fitted = line()
    says = f"{fitted.fixed * 1e3:.3f} ms + {fitted.per_host * 1e6:.1f} µs a host: 2 parameters, 2 points, no freedom"
    return {name: Found(smallest(pod, fitted), largest * pod.hosts / 512, says) for name, pod in pods.items()}


def pipeline(stages: int, seconds: float = 0.0) -> pw.Program:
    """Return Figure 7's program: stages on 4 cores and a host each.

    Args:
        stages: number of stages.
        seconds: of each stage; 0 for the tiny computation.
    """
    places = [pw.virtual_slice(4, name=f"stage {s}") for s in range(stages)]
    steps = [pw.work(seconds, on=place) if seconds else _add(place) for place in places]

    def body(x: Any) -> Any:
        for step in steps:
            x = step(x)
        return x

    return pw.program(body, name=f"{stages} stages")


def seconds_of_stages(stages: int, dispatch: str, seconds: float = 0.0) -> float:
    """Return the seconds from one program of so many stages to the next.

    Args:
        stages: number of stages.
        dispatch: as for ``pw.attach``.
        seconds: of each stage; 0 for the tiny computation.
    """
    with PodSetting(stages).attached(line().host("controller", stages), dispatch=dispatch):
        return side_by_side(pipeline(stages, seconds), _SCALAR, 4 if dispatch == "sequential" else 2 * _CALLS)


def figure_7() -> dict[str, Found]:
    """Return what sequential dispatch pays for each stage and parallel dispatch pays once."""
    call, many, most = line(), SIZES[7], LONG_STAGES
    tiny = {(s, d): seconds_of_stages(s, d) for s in (1, many) for d in DISPATCH}
    long = {(s, d): seconds_of_stages(s, d, LONG) for s in (1, most) for d in DISPATCH}
    each = {d: tiny[many, d] / many / tiny[1, d] for d in DISPATCH}
    falls = {d: long[1, d] / long[most, d] for d in DISPATCH}
    shared = call.at(many) / many / call.at(1)
    return {
        f"parallel over sequential, {many} stages": Found(
            tiny[many, "sequential"] / tiny[many, "parallel"], 1 / shared, "programs a second, tiny stages"
        ),
        f"a computation in parallel, {many} stages over 1": Found(
            each["parallel"], shared, "seconds each: what is fixed is shared"
        ),
        f"a computation in sequence, {many} stages over 1": Found(
            each["sequential"], 1.0, "seconds each: paid for every stage"
        ),
        f"programs in parallel, {most} long stages over 1": Found(
            falls["parallel"], 1.0, f"programs a second, stages of {LONG * 1e3:g} ms: flat"
        ),
        f"programs in sequence, {most} long stages over 1": Found(falls["sequential"], 1 / most, "the same: falls"),
    }
