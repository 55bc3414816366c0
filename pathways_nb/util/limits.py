"""How much may be attached, and why no more: checked before anything is made.

Each bound is what was seen to work (2 cores, 24 GiB). A virtual CPU device costs threads of this process; a simulated
one costs nothing until a summary, a status or a picture goes through all of them.
"""

from __future__ import annotations

from typing import Any

from pathways_nb.errors import PlaceError, UsageError, is_index, is_number
from pathways_nb.util.json_text import shortened
from pathways_nb.util.words import plural

VIRTUAL, VIRTUAL_ISLANDS = 1_024, 128
"""CPU devices in all, and islands: 10,000 threads, attached in 9 s."""
SIMULATED, SIMULATED_ISLANDS = 2**20, 2**16
"""Simulated devices in all, and islands: a status then takes 4 s, and a summary 15 s."""
MEMORY = 1e15
"""Bytes of a device."""
LATENCY = 3_600.0
"""Seconds that a message takes."""
LONGEST = 1e9
"""Seconds that a node is said to last: thirty years, of which sums keep their microseconds."""
NOISE = 10.0
"""Standard deviation of the logarithm of a duration: beyond it durations leave the range of floats."""


def check_counts(called: str, **counts: Any) -> None:
    """Refuse numbers of islands or devices that mean nothing, in the words of what was ``called``.

    Raises:
        PlaceError: naming the option and its value.
    """
    for name, count in counts.items():
        if not is_index(count) or count < 1:
            raise PlaceError(f"{called}({name}={shortened(count)}): a whole number of at least 1 is needed.")


def check_virtual(asked: str, islands: int, devices: int) -> None:
    """Refuse more virtual CPU devices than a process carries.

    Args:
        asked: what was called, for the error. islands: how many there would be. devices: on all of them together.

    Raises:
        PlaceError: both numbers, the bounds and their reason.
    """
    if devices > VIRTUAL or islands > VIRTUAL_ISLANDS:
        raise PlaceError(
            f"{asked}: {_counted(islands, devices)} virtual CPU devices; at most {VIRTUAL} on {VIRTUAL_ISLANDS} "
            f"islands are made, which take 10,000 threads of this process. Take fewer, or simulate them: "
            f'pw.attach("sim", chip="tpu_v5p", …).'
        )


def check_simulated(asked: str, islands: int, devices: int) -> None:
    """Refuse more simulated devices than can be summarised; as ``check_virtual``."""
    if devices > SIMULATED or islands > SIMULATED_ISLANDS:
        raise PlaceError(
            f"{asked}: {_counted(islands, devices)} simulated devices; at most {SIMULATED} on {SIMULATED_ISLANDS} "
            f"islands are simulated, since every summary goes through all of them, which takes 15 s. Take fewer."
        )


def _counted(islands: int, devices: int) -> str:
    return f"{shortened(islands)} {plural(islands, 'island')} with in all {shortened(devices)}"


def check_memory(hbm: Any) -> None:
    """Refuse what is no memory of a device."""
    if hbm is not None and not (is_number(hbm) and 1 <= hbm <= MEMORY):
        raise UsageError(
            f"attach(hbm={shortened(hbm)}): a number of bytes per device of at least 1 is needed, such as hbm=16e9, "
            f"and at most {MEMORY:g}, a thousand times what any device has."
        )


def check_latency(seconds: Any) -> None:
    """Refuse what is no delay of a message."""
    if not is_number(seconds) or not 0 <= seconds <= LATENCY:
        raise UsageError(
            f"attach(dcn_latency={shortened(seconds)}): a finite number of seconds of at least 0 is needed, and at "
            f"most {LATENCY:g}, for which nobody would wait."
        )


def check_noise(noise: Any) -> None:
    """Refuse what is no standard deviation."""
    if not is_number(noise) or not 0 <= noise <= NOISE:
        raise UsageError(
            f"attach(noise={shortened(noise)}): a number of at least 0 is needed, such as noise=0.05, and at most "
            f"{NOISE:g}: it is of a logarithm, and durations would leave the range of floats."
        )
