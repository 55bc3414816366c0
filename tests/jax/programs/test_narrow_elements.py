"""Arrays of elements smaller than a byte: arguments, values between places, and other numbers of devices."""

from __future__ import annotations

import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw

NARROW = {"int4": [-8, -1, 0, 7], "uint4": [0, 1, 8, 15], "int2": [-2, -1, 0, 1], "float4_e2m1fn": [0.5, 1.5, -6, 3]}


@pytest.mark.parametrize("name", NARROW)
def test_elements_smaller_than_a_byte_go_in_come_out_and_cross(controller: pw.Controller, name: str) -> None:
    places = pw.virtual_slice(2, island=0), pw.virtual_slice(2, island=1), pw.virtual_slice(1, island=1)
    first, second, third = (
        pw.jit(lambda v: -v, on=place, in_shardings=pw.P("x"), out_shardings=pw.P("x")) for place in places
    )
    given = np.asarray(NARROW[name]).astype(jnp.dtype(name))
    wanted = np.asarray(-jnp.asarray(given))
    back = np.asarray(-jnp.asarray(wanted))
    for made in (first(given), first(jnp.asarray(given)), first(pw.put(given, on=places[1]))):
        np.testing.assert_array_equal(made.result(), wanted)
    np.testing.assert_array_equal(second(first(given)).result(), back)
    np.testing.assert_array_equal(third(first(given)).result(), back)
    np.testing.assert_array_equal(pw.program(lambda v: second(first(v)))(given).result(), back)
