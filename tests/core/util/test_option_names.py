"""Wrong and missing options of public functions: our error names the one that was meant."""

from __future__ import annotations

import inspect
import re
from typing import Any

import pytest

import pathways_nb as pw

api: Any = pw  # mypy would refuse these calls, too


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (
            lambda: api.attach(devices=4),
            "pw.attach(devices=4): there is no option 'devices'. Did you mean 'devices_per_island' or 'devices_per_host'?",
        ),
        (
            lambda: api.jit(abs),
            "pw.jit: on= is missing, the virtual slice to run on, such as on=pw.virtual_slice(4).",
        ),
        (
            lambda: api.jit(abs, in_sharding=None),
            "pw.jit(in_sharding=None): there is no option 'in_sharding'. Did you mean 'in_shardings'",
        ),
        (
            lambda: api.jit(abs, device="cpu"),
            "pw.jit(device='cpu'): there is no option 'device'. The options are fn, on, in_shardings, out_shardings, "
            "static_argnums, static_argnames, donate_argnums, donate_argnames, compiler_options. Besides, on= is missing, "
            "the virtual slice to run on, such as on=pw.virtual_slice(4).",
        ),
        (
            lambda: api.shard_map(abs, on=pw.virtual_slice(2), in_specs=pw.P()),
            "pw.shard_map: out_specs= is missing, which axes of the slice divide each array, such as pw.P('x')",
        ),
        (lambda: api.host(print), "pw.host: on= is missing, the virtual slice whose host runs the function"),
        (
            lambda: api.virtual_slice(4, axis="x"),
            "pw.virtual_slice(axis='x'): there is no option 'axis'. Did you mean 'axes'?",
        ),
        (lambda: api.program(abs, fused=True), "there is no option 'fused'. Did you mean 'fuse'?"),
        (lambda: api.record(shows="memory"), "there is no option 'shows'. Did you mean 'show'?"),
        (lambda: api.fsdp(abs, {}), "pw.fsdp: on= is missing, the virtual slice to train on"),
    ],
)
def test_an_option_that_does_not_exist_or_is_missing_is_named(call, said: str) -> None:
    with pytest.raises(pw.UsageError, match=re.escape(said)):
        call()


def test_the_signature_stays_that_of_the_function() -> None:
    assert list(inspect.signature(pw.jit).parameters)[:3] == ["fn", "on", "in_shardings"]
    assert inspect.signature(pw.jit).parameters["on"].default is inspect.Parameter.empty
