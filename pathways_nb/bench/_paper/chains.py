"""Figures 5 to 7: tiny computations one after another, on one gang of all devices or from stage to stage.

A computation is a scalar all-reduce and an addition. OpByOp is a call for each, Chained one program of 128 nodes, Fused
one node of 128; JAX runs the same with a Python of its own on each host.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal

import jax
import jax.numpy as jnp

import pathways_nb as pw
from pathways_nb.bench._paper.found import Found
from pathways_nb.bench._paper.pods import JAX_CALL, PAPER, Line, Pod, in_turn, line, multi_controller, side_by_side
from pathways_nb.cost.host import HOST

LENGTH = int(PAPER["figure 5"]["chain"]["value"])
SIZES = tuple(2**k for k in range(10))
"""Hosts of Figures 5 and 7's curves, 4 cores each."""
LONG, LONG_SIZES = 4e-3, (1, 2, 4, 8, 16, 32)
"""Seconds of a stage that outlasts the dispatch of 32 of them, and how many there are."""
_CALLS = 12
_MATCHES = 0.99
"""Share of JAX's throughput that counts as the same."""
_SCALAR = jax.ShapeDtypeStruct((), jnp.float32)
Form = Literal["OpByOp", "Chained", "Fused"]


def _add(place: pw.VirtualSlice) -> pw.Computation:
    return pw.shard_map(lambda x: jax.lax.psum(x, place.axes) + 1.0, on=place, in_specs=pw.P(), out_specs=pw.P())


def chain(devices: int, form: Form) -> pw.Program:
    """A program that is called once for each computation (OpByOp) or once for all of a chain."""
    add = _add(pw.virtual_slice(devices))

    def body(x: Any) -> Any:
        for _ in range(1 if form == "OpByOp" else LENGTH):
            x = add(x)
        return x

    return pw.program(body, name=form, fuse=form == "Fused")


@cache
def seconds_of(form: Form, hosts: int, system: Literal["Pathways", "JAX"]) -> float:
    """Seconds of each computation of Figure 5, on hosts with 4 cores."""
    pod = Pod(hosts)
    with pod.attached(line().host("client", hosts) if system == "Pathways" else multi_controller()):
        seconds = in_turn(chain(pod.devices, form), _SCALAR, _CALLS)
    return seconds / (1 if form == "OpByOp" else LENGTH)


def curves(sizes: tuple[int, ...] = SIZES) -> dict[str, list[float]]:
    """Figure 5: computations per second over hosts."""
    forms: Mapping[str, Any] = {"Pathways": ("OpByOp", "Chained", "Fused"), "JAX": ("OpByOp", "Fused")}
    return {
        f"{system} {form}": [1 / seconds_of(form, hosts, system) for hosts in sizes]
        for system in forms
        for form in forms[system]
    }


def _crossing(above: Callable[[int], float], below: Callable[[int], float], share: float = 1.0) -> int:
    """The most cores at which ``above`` is at least ``share`` of ``below``, to a sixteenth; 0 if at none."""

    def holds(hosts: int) -> bool:
        return above(hosts) >= share * below(hosts) * (1 - 1e-6)

    last = max((hosts for hosts in SIZES if holds(hosts)), default=0)
    finer = range(last, min(2 * last, SIZES[-1] + 1), max(1, last // 16))
    return 4 * max(itertools.takewhile(holds, finer), default=0)


def figure_5() -> dict[str, Found]:
    """Up to how many cores a chain hides its call, and the baseline: a call's cost proportional to cores."""

    def rate(form: Form, system: Literal["Pathways", "JAX"]) -> Callable[[int], float]:
        return lambda hosts: 1 / seconds_of(form, hosts, system)

    def proportional(hosts: int) -> float:
        return LENGTH / (PAPER["figure 6"]["512 hosts"]["value"] * hosts / 512)

    fused, by_op = rate("Fused", "JAX"), rate("OpByOp", "JAX")
    slow, small = HOST.call / JAX_CALL, rate("Fused", "Pathways")(1) / fused(1)
    return {
        "fused": Found(
            _crossing(rate("Fused", "Pathways"), fused, 0.95),
            _crossing(lambda hosts: min(proportional(hosts), fused(hosts)), fused, 0.95),
            f"on 1024 cores a chain lasts {LENGTH * seconds_of('Fused', 256, 'JAX') * 1e3:.1f} ms by the torus' "
            f"formula, a call {line().at(256) * 1e3:.1f} ms. FAILS on few, too: on 4 cores Fused has {small:.0%} of "
            "JAX's rate",
        ),
        "chained": Found(
            _crossing(rate("Chained", "Pathways"), by_op),
            _crossing(proportional, by_op),
            f"JAX's call is taken to last {JAX_CALL * 1e6:.1f} µs; with {HOST.call * 1e6:.0f} µs it would be "
            f"{_crossing(rate('Chained', 'Pathways'), lambda hosts: by_op(hosts) / slow)} cores",
        ),
        "chained over OpByOp, 2048 cores": Found(
            seconds_of("OpByOp", 512, "Pathways") / seconds_of("Chained", 512, "Pathways"),
            float(LENGTH),
            "a call for 128 computations in place of one for each; TF and Ray are not modelled",
        ),
    }


def smallest(pod: Pod, fitted: Line) -> float:
    """Figure 6: seconds of the smallest computation at which calls of one keep up with JAX's."""

    def keeps_up(seconds: float) -> bool:
        place = pw.virtual_slice(pod.devices)
        program = pw.program(pw.work(seconds, on=place), name="one")
        with pod.attached(fitted.host("client", pod.hosts)):
            ours = in_turn(program, _SCALAR, _CALLS)
        with pod.attached(multi_controller()):
            return in_turn(program, _SCALAR, _CALLS) >= _MATCHES * ours

    low, high = 1e-4, 1.0
    while high > 1.002 * low:
        middle = math.sqrt(low * high)
        low, high = (low, middle) if keeps_up(middle) else (middle, high)
    return high


def figure_6() -> dict[str, Found]:
    """Both points, fitted; the baseline is a cost proportional to hosts, through the larger one."""
    pods = {"16 hosts": Pod(16, 8), "512 hosts": Pod(512, 4)}
    largest = PAPER["figure 6"]["512 hosts"]["value"]
    fitted = line()
    says = f"{fitted.fixed * 1e3:.3f} ms + {fitted.per_host * 1e6:.1f} µs a host: 2 parameters, 2 points, no freedom"
    return {name: Found(smallest(pod, fitted), largest * pod.hosts / 512, says) for name, pod in pods.items()}


def pipeline(stages: int, seconds: float = 0.0) -> pw.Program:
    """Figure 7: a stage on 4 cores and a host of its own each; tiny computations, or some that last."""
    places = [pw.virtual_slice(4, name=f"stage {s}") for s in range(stages)]
    steps = [pw.work(seconds, on=place) if seconds else _add(place) for place in places]

    def body(x: Any) -> Any:
        for step in steps:
            x = step(x)
        return x

    return pw.program(body, name=f"{stages} stages")


def seconds_of_stages(stages: int, dispatch: str, seconds: float = 0.0) -> float:
    """Seconds from one program of so many stages to the next."""
    with Pod(stages).attached(line().host("controller", stages), dispatch=dispatch):
        return side_by_side(pipeline(stages, seconds), _SCALAR, 4 if dispatch == "sequential" else 2 * _CALLS)


def figure_7() -> dict[str, Found]:
    """What sequential dispatch pays for each stage, parallel dispatch pays once."""
    times = {(s, d): seconds_of_stages(s, d) for s in (1, 128) for d in ("parallel", "sequential")}
    most, each = LONG_SIZES[-1], line()
    long = {(s, d): seconds_of_stages(s, d, LONG) for s in (1, most) for d in ("parallel", "sequential")}
    amortised = each.at(128) / 128 / each.at(1)
    one = each.at(1) + LONG
    return {
        "parallel over sequential, 128 stages": Found(
            times[128, "sequential"] / times[128, "parallel"], 128 * each.at(1) / each.at(128), "tiny stages"
        ),
        "a computation in parallel, 128 stages over 1": Found(
            times[128, "parallel"] / 128 / times[1, "parallel"], amortised, "seconds each: the fixed cost is shared"
        ),
        "a computation in sequence, 128 stages over 1": Found(
            times[128, "sequential"] / 128 / times[1, "sequential"], 1.0, "seconds each: paid for every stage"
        ),
        "programs in parallel, 32 long stages over 1": Found(
            long[1, "parallel"] / long[most, "parallel"], 1.0, f"a second; stages of {LONG * 1e3:g} ms: flat"
        ),
        "programs in sequence, 32 long stages over 1": Found(
            long[1, "sequential"] / long[most, "sequential"], 1 / most, f"a second; each stage takes {one * 1e3:.1f} ms"
        ),
    }
