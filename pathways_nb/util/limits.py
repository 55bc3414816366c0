"""Limits of what may be attached, checked before anything is created.

Each limit is a size that was seen to work (2 cores, 24 GiB). A virtual CPU device costs threads of this process (about
ten each); a simulated one costs nothing until a summary, a status or a figure goes through all of them.
"""

from __future__ import annotations

from typing import Any

from pathways_nb.errors import PlaceError, UsageError, is_index, is_number
from pathways_nb.util.json_text import shortened
from pathways_nb.util.words import plural

VIRTUAL, VIRTUAL_ISLANDS = 1_024, 128
"""Virtual CPU devices in all, and islands: 10,000 threads, attached in 9 s."""
SIMULATED, SIMULATED_ISLANDS = 2**20, 2**16
"""Simulated devices in all, and islands: a status then takes 4 s, and a summary 15 s."""
MEMORY = 1e15
"""Bytes of memory of a device."""
LATENCY = 3_600.0
"""Seconds that a message takes."""
SILENCE = 5.0, 86_400.0
"""Seconds of silence after which a host counts as dead."""
LONGEST = 1e9
"""Seconds that a node is declared to take: thirty years. Sums of such durations are still exact to microseconds."""
NOISE = 10.0
"""Standard deviation of the logarithm of a duration: beyond it, durations leave the range of floats."""


def check_counts(called: str, **counts: Any) -> None:
    """Check numbers of islands or devices.

    Args:
        called: the call, for the error.
        **counts: each number under the name of its option.

    Raises:
        PlaceError: names the option and its value.
    """
    for name, count in counts.items():
        # ``shortened``: repr of a number of thousands of digits is refused by Python.
        if not is_index(count) or count < 1:
            raise PlaceError(f"{called}({name}={shortened(count)}): a whole number of at least 1 is needed.")


def check_virtual(asked: str, islands: int, devices: int) -> None:
    """Refuse more virtual CPU devices than a process can carry.

    Args:
        asked: the call, for the error.
        islands: number of islands.
        devices: number of devices of all islands together.

    Raises:
        PlaceError: names both numbers, the limits and their reason.
    """
    if devices > VIRTUAL or islands > VIRTUAL_ISLANDS:
        raise PlaceError(
            f"{asked}: {_counted(islands, devices)} virtual CPU devices; at most {VIRTUAL} on {VIRTUAL_ISLANDS} "
            f"islands are made, which take 10,000 threads of this process. Take fewer, or simulate them: "
            f'pw.attach("sim", chip="tpu_v5p", …).'
        )


def check_simulated(asked: str, islands: int, devices: int) -> None:
    """Refuse more simulated devices than can be summarised.

    Args:
        asked: the call, for the error.
        islands: number of islands.
        devices: number of devices of all islands together.

    Raises:
        PlaceError: names both numbers, the limits and their reason.
    """
    if devices > SIMULATED or islands > SIMULATED_ISLANDS:
        raise PlaceError(
            f"{asked}: {_counted(islands, devices)} simulated devices; at most {SIMULATED} on {SIMULATED_ISLANDS} "
            f"islands are simulated, since every summary goes through all of them, which takes 15 s. Take fewer."
        )


def _counted(islands: int, devices: int) -> str:
    return f"{shortened(islands)} {plural(islands, 'island')} with in all {shortened(devices)}"


def check_memory(hbm: Any) -> None:
    """Check the bytes of memory per device; ``None`` means no limit.

    Raises:
        UsageError: not a number of bytes, or more than any device has.
    """
    if hbm is not None and not (is_number(hbm) and 1 <= hbm <= MEMORY):
        raise UsageError(
            f"attach(hbm={shortened(hbm)}): a number of bytes per device of at least 1 is needed, such as hbm=16e9, "
            f"and at most {MEMORY:g}, a thousand times what any device has."
        )


def check_latency(seconds: Any) -> None:
    """Check the seconds that a message takes.

    Raises:
        UsageError: not a number of seconds, or too many.
    """
    if not is_number(seconds) or not 0 <= seconds <= LATENCY:
        raise UsageError(
            f"attach(dcn_latency={shortened(seconds)}): a finite number of seconds of at least 0 is needed, and at "
            f"most {LATENCY:g}, for which nobody would wait."
        )


def check_silence(seconds: Any) -> None:
    """Check the seconds of silence after which a host counts as dead; ``None`` takes the default.

    Raises:
        UsageError: not a number of seconds, too few or too many.
    """
    if seconds is not None and not (is_number(seconds) and SILENCE[0] <= seconds <= SILENCE[1]):
        raise UsageError(
            f"attach(unresponsive_after={shortened(seconds)}): a number of seconds from {SILENCE[0]:g} to "
            f"{SILENCE[1]:g} is needed: a host on a busy machine may be silent for some."
        )


def check_noise(noise: Any) -> None:
    """Check the standard deviation of the logarithm of durations.

    Raises:
        UsageError: not a number, or so large that durations would leave the range of floats.
    """
    if not is_number(noise) or not 0 <= noise <= NOISE:
        raise UsageError(
            f"attach(noise={shortened(noise)}): a number of at least 0 is needed, such as noise=0.05, and at most "
            f"{NOISE:g}: it is of a logarithm, and durations would leave the range of floats."
        )
