"""Tries one program after another, in this process, until the time is over."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable
from functools import partial

import pathways_nb as pw
from tests.jax.any_places.checking import Check
from tests.jax.any_places.donating import MEMORY, DonationWriter
from tests.jax.any_places.writing import Writer


def try_all(
    seeds: range, end: float, shelf: int | None, simulate: bool, brief: bool, donate: bool = False
) -> tuple[int, int]:
    """Try programs until the time is over; how many were tried, and how many failed."""
    attach(simulate, MEMORY if donate else None)
    check, tried, failed = Check(), 0, 0
    write: Callable[[int], Writer | DonationWriter] = partial(Writer, shelf=shelf)
    if donate:
        write = partial(DonationWriter, shelf=seeds.start if shelf is None else shelf)
    for seed in seeds:
        if time.monotonic() > end:
            break
        tried += 1
        failed += not succeeds(check, write(seed), f"seed {seed}", brief)
    return tried, failed


def attach(simulate: bool, memory: int | None = None) -> None:
    """Three islands of four devices, as the places of the programs want them."""
    if simulate:
        pw.attach("sim", chip="tpu_v3", islands=3, devices_per_island=4, values=True, hbm=memory)
    else:
        pw.attach("cpu", islands=3, devices_per_island=4, hbm=memory)


def succeeds(check: Check, writer: Writer | DonationWriter, name: str, brief: bool) -> bool:
    """Try one program; if it fails, say how, and print its text."""
    text = writer.text()
    try:
        check(text)
    except Exception as error:
        summary = " ".join(str(error).split())[:200]
        print(f"{name} ({writer.transform}): {type(error).__name__}: {summary}", flush=True)
        if not brief:
            traceback.print_exc()
            print(text, flush=True)
        return False
    return True
