"""What a step computes, in words that do not depend on the version of JAX: it is how a recorded text is found again.

Versions spell the same step differently: they broadcast, convert and nest functions in other ways. So what is compared
is what decides the compiled program: arguments with their layouts, and how often the step has each product, constraint,
exchange, loop, kernel, reduction, rearrangement and transcendental function, with its shapes. Where the version is the
same, every operation is compared, with its constants and what it reads (``exact_of``).
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import jax.extend.core as jex
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from pathways_nb.adopt.taken_step import TakenStep
from pathways_nb.compilers.targets import CompilerTarget
from pathways_nb.jaxpr.jaxpr_digest import digest_of, is_of_this_process
from pathways_nb.plan.source_lines import users_frame
from pathways_nb.program.items import inner_jaxprs
from pathways_nb.program.specs import axes_of

EXACT = "name, chip, mesh, options, arguments, and every operation with its constants"
"""What is compared where JAX and the libraries in use have the same versions, in words."""
COMPARED = (
    "name, chip, mesh, options, arguments, and the number of operations of each kind and shape; constants and "
    "elementwise operations are not compared, as versions of JAX and of libraries write them differently"
)
"""What a fingerprint is made of, in words."""
_COUNTED = re.compile(
    r"dot_general|ragged_dot|conv_general|attention|pallas_call|custom_call|ffi_call|fft|sharding_constraint|reshard"
    r"|^(?:all_|psum|pmax|pmin|ppermute|reduce_|reduce_scatter|cum|arg|sort|top_k|gather|scatter|scan|while|cond|shard_map)"
    r"|^(?:exp|exp2|log|log1p|tanh|logistic|erf|sin|cos)$"
    r"|^(?:reshape|transpose)$"
)
"""Names of the primitives that count."""
_SPELT = re.compile(r"_invariant$|(?<=psum)2$")
"""What some versions of JAX append to the names of collectives."""
_KERNELS = re.compile(r"pallas_call|custom_call|ffi_call")
"""Primitives whose inside is another machine's code."""


class CountedOperation(NamedTuple):
    """An operation that counts.

    Args:
        key: what it is, with its shapes and the loops around it.
        at: file and line of the user's code; None where no frame is the user's.
    """

    key: str
    at: tuple[str, int] | None


def counted_in(jaxpr: jex.ClosedJaxpr | jex.Jaxpr, around: str = "") -> Iterator[CountedOperation]:
    """Yield the operations that count, in their order, those in the body of a loop once.

    Args:
        jaxpr: of the step.
        around: the loops that it stands in.
    """
    for eqn in (jaxpr.jaxpr if isinstance(jaxpr, jex.ClosedJaxpr) else jaxpr).eqns:
        name = _SPELT.sub("", eqn.primitive.name)
        if _COUNTED.search(name) and not _differs(eqn):
            said = eqn.source_info.traceback
            yield CountedOperation(
                f"{around}{name} {_shapes(eqn)} {_parameters(eqn)}".rstrip(), users_frame(said.frames if said else ())
            )
        if _KERNELS.search(name):
            continue
        inside = f"{around}{name} {eqn.params.get('length', '')}/" if name in ("scan", "while", "cond") else around
        for inner in inner_jaxprs(eqn.params):
            yield from counted_in(inner, inside)


def fingerprint_of(
    taken: TakenStep, target: CompilerTarget, options: Mapping[str, Any], counted: list[CountedOperation]
) -> str:
    """Return a digest of a step and of what it is compiled for.

    Args:
        taken: the step.
        target: the devices.
        options: of the compiler.
        counted: of the step (``counted_in``).
    """
    counts: dict[str, int] = {}
    for one in counted:
        counts[one.key] = counts.get(one.key, 0) + 1
    axes = zip(taken.mesh.axis_names, taken.mesh.axis_sizes, taken.mesh.axis_types, strict=True)
    found = {
        "name": taken.name,
        "target": [target.platform, target.devices, dict(target.arguments)],
        "options": dict(options),
        "mesh": [[name, size, kind.name] for name, size, kind in axes],
        "arguments": [[list(one.shape), str(one.dtype), _spec(one.sharding.spec)] for one in taken.structs],
        "results": [None if one is None else _spec(one.spec) for one in taken.results],
        "donated": list(taken.donated),
        "counts": counts,
    }
    return hashlib.sha256(json.dumps(found, sort_keys=True).encode()).hexdigest()[:16]


def exact_of(taken: TakenStep) -> str:
    """Return a digest of every operation of a step as this version of JAX writes it.

    It is empty where a step cannot be told apart from another one in another process.
    """
    text = digest_of(taken.jaxpr) + repr([one.weak_type for one in taken.structs])
    return "" if is_of_this_process(text) else hashlib.sha256(text.encode()).hexdigest()[:16]


def _differs(eqn: Any) -> bool:
    """Return whether an operation is one that versions of JAX have more or fewer of.

    Such are layouts of numbers, and what only adds or drops dimensions of length 1.
    """
    if eqn.primitive.name == "reshard":
        return not eqn.outvars[0].aval.shape
    if eqn.primitive.name != "reshape":
        return False
    before, after = ([length for length in one.aval.shape if length > 1] for one in (eqn.invars[0], eqn.outvars[0]))
    return before == after


def _shapes(eqn: Any) -> str:
    """Return types and shapes of what goes in and comes out; a loop's constants and order differ between versions."""
    if eqn.primitive.name in ("scan", "while", "cond"):
        return ""
    given, made = (" ".join(_shape(one.aval) for one in ends) for ends in (eqn.invars, eqn.outvars))
    return f"{given} -> {made}"


def _shape(aval: Any) -> str:
    return f"{getattr(aval, 'dtype', '')}{list(getattr(aval, 'shape', ()))}".replace(" ", "")


def _parameters(eqn: Any) -> str:
    """Return the parameters that decide what an operation does."""
    params = eqn.params
    match eqn.primitive.name:
        case "scan":
            return f"{params['length']}{' reverse' * params['reverse']}{_other(params, unroll=1)}"
        case "while":  # how often a fori_loop runs
            ends = [*eqn.invars, *(one for part in params["cond_jaxpr"].jaxpr.eqns for one in part.invars)]
            return " ".join(str(one.val) for one in ends if isinstance(one, jex.Literal) and np.ndim(one.val) == 0)
        case "ppermute":
            return f"{params['axis_name']} {list(params['perm'])}"
        case "conv_general_dilated":
            names = ("window_strides", "padding", "lhs_dilation", "rhs_dilation", "feature_group_count")
            return " ".join(str(params[name]) for name in names)
        case "sort":
            return f"{params['dimension']} {params['num_keys']}"
        case "shard_map":
            return json.dumps([[*map(_spec, params[name])] for name in ("in_specs", "out_specs")])
        case name if name.startswith("cum"):
            return f"{params['axis']}{' reverse' * params['reverse']}"
        case "dot_general":
            return f"{params['dimension_numbers']} {params['precision'] or ''}"
        case "transpose":
            return str(params["permutation"])
    if _KERNELS.search(eqn.primitive.name):
        return str(params.get("call_target_name") or params.get("target_name") or params.get("name") or "")
    layout = params.get("sharding") or params.get("dst_sharding")
    if isinstance(layout, NamedSharding):
        free = sorted(params.get("unconstrained_dims") or ())
        return json.dumps(_spec(layout.spec)) + (f" free {free}" if free else "")
    said = params.get("axes", params.get("axis_name", ""))
    return (str(said) if said != "" else "") + _other(params, axis_index_groups=None)


def _other(params: Mapping[str, Any], **usual: Any) -> str:
    """Return those parameters that are not as usual."""
    return "".join(f" {name}={params[name]}" for name, value in usual.items() if params.get(name, value) != value)


def _spec(spec: PartitionSpec) -> list[Any]:
    """Return the axes of each dimension, without those at the end that are not divided."""
    found = ["any" if one is PartitionSpec.UNCONSTRAINED else list(axes_of(one)) for one in spec]
    while found and not found[-1]:
        found.pop()
    return found
