"""Figures 8, 9 and 11: several clients on the same cores, by gangs that take turns.

A call costs its own client's thread what Figure 6 says (``"client"``), or else the one controller (``"controller"``).
With one client both are the same, with many they are not, and only one of them can be what the paper measured; so both
readings are simulated and the table shows the second one in its remarks.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import pathways_nb as pw
from pathways_nb.bench._paper.found import Found
from pathways_nb.bench._paper.pods import JAX_CALL, PAPER, PodSetting, Reading, line
from pathways_nb.trace.record import Events

POD = PodSetting(16, 8)
"""Figure 6's smaller machine; on which one Figures 8 and 11 were measured is not known."""
TIMES = {"0.04 ms": 0.04e-3, "0.33 ms": 0.33e-3, "1.04 ms": 1.04e-3, "2.4 ms": 2.4e-3}
"""Computation times of Figure 8, in seconds."""
COUNTS, MANY = (1, 4, 8, 16), 64
"""Numbers of clients in Figure 11, and in Figure 8."""
_CALLS = 16
"""Calls of each client."""
_PROGRAMS, _GANGS = 30, 128
"""For Figure 9: calls of all clients together, and gangs of each call."""
_SCALAR = jax.ShapeDtypeStruct((), jnp.float32)


def compete(program: pw.Program, shares: Sequence[float], calls: Sequence[int]) -> Events:
    """Return the gangs that ran, in the order of their ends, for clients that call as soon as their threads can.

    Args:
        program: called by all clients.
        shares: of each client.
        calls: number of calls of each client.
    """
    tenants = [pw.client(f"client {number}", share=share) for number, share in enumerate(shares)]
    with pw.record() as run:
        for turn in range(max(calls)):
            for tenant, most in zip(tenants, calls, strict=True):
                if turn < most:
                    with tenant.acting():
                        program(_SCALAR)
    gangs = run.events.of_kind("compute")
    return gangs.select(np.argsort(gangs["end"], kind="stable"))


@cache
def per_second(seconds: float, clients: int, reading: Reading = "client") -> float:
    """Return the computations per second of all clients together, each calling programs of one computation.

    Args:
        seconds: of one computation.
        clients: number of clients.
        reading: whether a call costs the client's thread or the one controller.
    """
    program = pw.program(pw.work(seconds, on=pw.virtual_slice(POD.devices)), name="one")
    with POD.attached(line().host(reading, POD.hosts)):
        ends = compete(program, (1.0,) * clients, (_CALLS,) * clients)["end"]
    # Only the middle half counts, in which all clients had calls to make.
    first, last = (clients * round(_CALLS * part) for part in (0.25, 0.75))
    return float((last - first) / (ends[last] - ends[first]))


def utilisation(clients: int, seconds: float = TIMES["0.33 ms"], reading: Reading = "client") -> float:
    """Return the part of the time in which the cores work; arguments as for ``per_second``."""
    return seconds * per_second(seconds, clients, reading)


def figure_8() -> dict[str, Found]:
    """Return the throughput of many clients over JAX's; the baseline is the lesser of clients' and cores' rate."""
    call, found = line().at(POD.hosts), {}
    for name, seconds in TIMES.items():
        of_jax = max(seconds, JAX_CALL)
        # The factor keeps rounding from adding a client to an exact quotient.
        needed = int(np.ceil(call / of_jax * (1 - 1e-9)))
        found[name] = Found(
            per_second(seconds, MANY) * of_jax,
            min(MANY / call, 1 / seconds) * of_jax,
            f"{MANY} clients; from {needed} on as fast as JAX. A shared controller: "
            f"{per_second(seconds, MANY, 'controller') * of_jax:.2f}",
        )
    return found


def shares_of(wanted: Sequence[int]) -> np.ndarray:
    """Return Figure 9: device time of clients with these shares, of ``sum(wanted)``, while all have gangs waiting."""
    work = pw.work(TIMES["0.33 ms"], on=pw.virtual_slice(POD.devices))

    def gangs(x: Any) -> Any:
        """Return the end of a chain of ``_GANGS`` gangs."""
        for _ in range(_GANGS):
            x = work(x)
        return x

    calls = [_PROGRAMS * share // sum(wanted) for share in wanted]
    with POD.attached(policy="stride"):
        events = compete(pw.program(gangs, name="gangs"), wanted, calls)
    ends = [events["end"][events.is_("client", f"client {number}")] for number in range(len(wanted))]
    first, last = max(own[0] for own in ends), min(own[-1] for own in ends)
    got = np.array([((own > first) & (own <= last)).sum() for own in ends])
    return got / got.sum() * sum(wanted)


def figure_9() -> dict[str, Found]:
    """Return the largest relative error of a share.

    The controller divides by shares, so this tests code, not a model.
    """
    found = {}
    for name in ("1:1:1:1", "1:2:4:8"):
        wanted = PAPER["figure 9"][name]["value"]
        got = shares_of(wanted)
        says = "got " + ":".join(f"{share:.3g}" for share in got) + "; a unit test, no evidence"
        found[name] = Found(float(np.abs(got / wanted - 1).max()), 0.0, says)
    return found


def figure_11() -> dict[str, Found]:
    """Return the utilisation for 1 to 16 clients; the baseline is the same closed form as in Figure 8."""
    seconds, call, found = TIMES["0.33 ms"], line().at(POD.hosts), {}
    for count in COUNTS:
        other = utilisation(count, seconds, "controller")
        found["1 client" if count == 1 else f"{count} clients"] = Found(
            utilisation(count), min(1.0, count * seconds / call), f"a shared controller: {other:.2f}"
        )
    return found
