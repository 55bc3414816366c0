"""What one instruction of a compiled module does on its device: FLOPs of matrix products, bytes of memory.

FLOPs are counted as the compiler kept them: a product that is computed again in a backward pass counts again. Bytes
are those that really move: of an array that a fusion only slices, the slice; of an array that is updated in place, the
update; nothing for what a TPU keeps in its vector memory.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from pathways_nb.cost.collectives.kinds import BY_OPCODE
from pathways_nb.cost.hlo.hlo_text import HloComputation, HloInstruction, HloModule, HloShape

_LABELS = re.compile(r"dim_labels=([^_,]*)_([^-]*)->([^,\s]*)")
_WINDOW = re.compile(r"window=\{([^}]*)\}")
_TARGET = re.compile(r'custom_call_target="([^"]*)"')
_GROUPS = re.compile(r"(feature|batch)_group_count=(\d+)")
_OPERANDS = re.compile(r'"?operand_precision"?[=:][{\[]([^}\]]*)')
_WORD = re.compile(r"\w+")
_PRECISIONS = ("", "high", "highest")
"""From JAX's default to the most; HLO calls the default ``DEFAULT``."""
_ALIKE = frozenset({"bitcast", "reshape", "copy", "convert", "transpose"})
_SLICES = frozenset({"dynamic-slice", "slice", "gather"})
_FREE = frozenset(
    "parameter constant get-tuple-element tuple bitcast after-all partition-id replica-id opt-barrier "
    "add-dependency iota domain".split()
)
"""Opcodes that do nothing on the device, or next to nothing."""
_WRITTEN = ("triton", "mosaic_gpu", "tpu_custom_call")
"""Parts of the targets of kernels that are written in Pallas or Triton."""
_NO_WORK = frozenset({"AllocateBuffer", "AssumeGatherIndicesInBound", "GatherScatterIndicesBitpacked", "Sharding"})
"""Custom calls that are notes to the compiler."""
_BACKWARD = 2.5
"""FLOPs of the backward pass of an attention kernel over those of its forward pass: five products for two."""


class OpWork(NamedTuple):
    """Work of one instruction on each device.

    Args:
        flops: of matrix products and convolutions.
        dtype: type of what is multiplied, as HLO writes it; empty without products.
        attention: FLOPs of an attention kernel, of the part that a causal mask keeps.
        bytes: read from the device's memory and written to it.
        precision: asked for of the products: ``""`` for JAX's default, ``"high"`` or ``"highest"``.
    """

    flops: float = 0.0
    dtype: str = ""
    attention: float = 0.0
    bytes: float = 0.0
    precision: str = ""


def is_free(instruction: HloInstruction) -> bool:
    """Return whether an instruction does nothing on the device."""
    return instruction.opcode in _FREE or (
        instruction.opcode == "custom-call" and custom_call_target(instruction) in _NO_WORK
    )


def is_unknown_kernel(instruction: HloInstruction, work: OpWork) -> bool:
    """Return whether an instruction is a kernel of Pallas or Triton, and the text does not say what it computes.

    Args:
        instruction: of a module.
        work: of it.
    """
    target = custom_call_target(instruction) if instruction.opcode == "custom-call" else ""
    return any(part in target for part in _WRITTEN) and not work.flops and not work.attention


def custom_call_target(instruction: HloInstruction) -> str:
    """Return the name of what a custom call calls; empty for another instruction."""
    found = _TARGET.search(instruction.attributes)
    return found[1] if found else ""


def work_of(module: HloModule, computation: HloComputation, instruction: HloInstruction) -> OpWork:
    """Return the work of one instruction; a fusion is one piece of work.

    Args:
        module: of the instruction.
        computation: that holds it.
        instruction: neither a loop nor a collective.
    """
    products = _products(module, computation, instruction)
    moved = _fusion_bytes(module, computation, instruction) if instruction.opcode == "fusion" else sum(
        map(_in_memory, [*_operands(computation, instruction), *_results(instruction)])
    )  # fmt: skip
    if instruction.opcode in _SLICES:
        moved = 2 * sum(map(_in_memory, instruction.shapes))
    elif instruction.opcode == "dynamic-update-slice":
        moved = 2 * _in_memory(computation.instructions[instruction.operands[1]].shapes[0])
    return products._replace(bytes=moved)


def _products(module: HloModule, computation: HloComputation, instruction: HloInstruction) -> OpWork:
    """Return the products of an instruction, without bytes; of a fusion, all of them."""
    if instruction.opcode == "dot":
        return _dot(computation, instruction, _numbers(instruction.attributes, "lhs_contracting_dims"))
    if instruction.opcode == "convolution":
        return _convolution(computation, instruction)
    if instruction.opcode == "custom-call":
        return _custom_call(computation, instruction)
    if instruction.opcode not in ("fusion", "async-start"):
        return OpWork()
    inside = [(module.computations[name], one) for name in instruction.called
              for one in module.computations[name].instructions.values()]  # fmt: skip
    each = [_products(module, inner, one) for inner, one in inside]
    dtypes, precisions = ([getattr(one, name) for one in each if one.flops] for name in ("dtype", "precision"))
    # The slowest of several counts; there are hardly ever two kinds in one fusion.
    return OpWork(
        sum(one.flops for one in each), dtypes[-1] if dtypes else "", sum(one.attention for one in each),
        precision=max(precisions, key=_PRECISIONS.index, default=""),
    )  # fmt: skip


def _dot(computation: HloComputation, dot: HloInstruction, contracted: Sequence[int]) -> OpWork:
    """Return twice the number of products of a general product of two arrays."""
    left = computation.instructions[dot.operands[0]].shapes[0]
    flops = 2.0 * dot.shapes[0].size * math.prod(left.dims[axis] for axis in contracted)
    return OpWork(flops, left.dtype, precision=_precision(dot.attributes))


def _precision(attributes: str) -> str:
    """Return the most precision that is asked for an operand."""
    found = [word.lower() for said in _OPERANDS.findall(attributes) for word in _WORD.findall(said)]
    return max((word for word in found if word in _PRECISIONS), key=_PRECISIONS.index, default="")


def _custom_call(computation: HloComputation, call: HloInstruction) -> OpWork:
    """Return the products of a library's kernel: cuBLAS, cuDNN, Pallas."""
    target, config = custom_call_target(call), _config(call)
    if target.startswith("__cublas"):
        numbers = config["gemm_backend_config"]["dot_dimension_numbers"]
        return _dot(computation, call, [int(axis) for axis in numbers["lhs_contracting_dimensions"]])
    if "fmha" in target or target.startswith("pathways_nb.attention"):
        return OpWork(attention=_attention(computation, call, target, config))
    if target.startswith("__cudnn$conv"):
        return _convolution(computation, call)
    if target == "tpu_custom_call":
        return OpWork(attention=_pallas(computation, call, config))
    return OpWork()


def _attention(computation: HloComputation, call: HloInstruction, target: str, config: Any) -> float:
    """Return the FLOPs of a fused attention of a GPU's library, half of them if it is causal.

    Forward: two products of ``length × length × width`` for each head. Queries are (batch, length, heads, width).
    """
    batch, length, heads, width = computation.instructions[call.operands[0]].shapes[0].dims
    keys = computation.instructions[call.operands[1]].shapes[0].dims[1]
    said = config.get("cudnn_fmha_backend_config")
    causal = "CAUSAL" in str(said.get("mask_type", "")) if said else True
    once = 4.0 * batch * heads * length * keys * width * (0.5 if causal else 1.0)
    return once * (_BACKWARD if "ackward" in target else 1.0)


_SPLASH = {"splash_mha_fwd": 2, "splash_mha_dq": 3, "splash_mha_dkv": 4, "splash_mqa_fwd": 2, "splash_mqa_dq": 3,
           "splash_mqa_dkv": 4, "flash_attention": 2}  # fmt: skip
"""Products of JAX's attention kernels for TPUs, by the beginning of their names: what they compute again included."""


def _pallas(computation: HloComputation, call: HloInstruction, config: Any) -> float:
    """Return the FLOPs of a Pallas kernel: as it says itself, else those of a kernel of attention that is known."""
    estimate = config.get("custom_call_config", {}).get("cost_estimate") or config.get("cost_estimate")
    if estimate:
        return float(estimate.get("flops", 0))
    products = next((count for name, count in _SPLASH.items() if name in call.op_name), 0)
    arrays = [shape.dims for shape in _operands(computation, call) if len(shape.dims) >= 3 and shape.dtype != "s8"]
    if not products or len(arrays) < 2:
        return 0.0
    # Queries and keys are (batch, heads, length, width), or without a batch; the mask is causal.
    query, key = arrays[0], arrays[1]
    return 0.5 * 2.0 * products * math.prod(query) * key[-2]


def _convolution(computation: HloComputation, conv: HloInstruction) -> OpWork:
    """Return the FLOPs of a convolution, a kernel's of cuDNN too: pairs of taps that meet an element.

    A TPU makes convolutions also of products.

    Padding, holes of a dilation, and strides make taps that meet nothing; they are no work of the program.
    """
    left, right = (computation.instructions[name].shapes[0] for name in conv.operands[:2])
    made, target = conv.shapes[0], custom_call_target(conv)
    # Gradients by cuDNN have the labels and the window of the forward pass: its output is an operand, by which follows
    # the gradient of its input, or of its kernel.
    if "convBackwardInput" in target:
        left, made = made, left
    elif "convBackwardFilter" in target:
        right, made = made, right
    labels = _LABELS.search(conv.attributes)
    if labels is None:
        return OpWork(dtype=left.dtype)
    found = _WINDOW.search(conv.attributes)
    window = dict(part.split("=") for part in (found[1].split() if found else ()))
    spatial = [at for at in labels[2] if at.isdigit()]
    pairs = 1
    for letter in spatial:
        # The digit is the dimension's number in the window, in whatever order the labels name them.
        taken = {name: _part(text, int(letter)) for name, text in window.items()}
        sizes = left.dims[labels[1].index(letter)], made.dims[labels[3].index(letter)]
        pairs *= _taps(*sizes, right.dims[labels[2].index(letter)], taken)
    features = right.dims[labels[2].index("i")]
    out = made.dims[labels[3].index("f")]
    batch = made.dims[labels[3].index("b")]
    groups = {name: int(count) for name, count in _GROUPS.findall(conv.attributes)}
    flops = 2.0 * pairs * features * out * batch / groups.get("batch", 1)
    return OpWork(flops, left.dtype, precision=_precision(conv.attributes))


def _taps(read: int, written: int, kernel: int, window: dict[str, str]) -> int:
    """Return the number of pairs of an output and a tap that meets an element, along one spatial dimension.

    Args:
        read: length of the input.
        written: length of the output.
        kernel: length of the kernel.
        window: of this dimension: ``stride``, ``pad``, ``lhs_dilate``, ``rhs_dilate``.
    """
    stride, spread, apart = (int(window.get(name) or 1) for name in ("stride", "lhs_dilate", "rhs_dilate"))
    low = int((window.get("pad") or "0").split("_")[0])
    count = 0
    for tap in range(kernel):
        # Positions of this tap in the spread input: first, first + stride, …; those at a multiple of ``spread`` count.
        first = tap * apart - low
        step = spread // math.gcd(stride, spread)
        begin = next((n for n in range(step) if (first + n * stride) % spread == 0), None)
        if begin is None:
            continue
        begin += step * max(0, math.ceil((-first - begin * stride) / (step * stride)))
        last = min(written - 1, ((read - 1) * spread - first) // stride)
        count += max(0, (last - begin) // step + 1)
    return count


def _part(text: str, number: int) -> str:
    """Return what a window says of one dimension; dimensions are separated by ``x``."""
    parts = text.split("x")
    return parts[number] if number < len(parts) else ""


def _fusion_bytes(module: HloModule, computation: HloComputation, fusion: HloInstruction) -> float:
    """Return the bytes that a fusion reads and writes."""
    inner = module.computations[fusion.called[0]]
    total = 0.0
    for number, name in enumerate(fusion.operands):
        shape = _shape_of(computation, name)
        if shape is None or not _in_memory(shape):
            continue
        parameter = inner.parameters.get(number)
        total += min(shape.bytes, _read_of(module, inner, parameter)) if parameter else shape.bytes
    root = inner.root
    roots = [inner.instructions[name] for name in root.operands] if root.opcode == "tuple" else [root]
    for shape, made in zip(_results(fusion), roots, strict=False):
        written = _written_by(inner, made)
        total += min(shape.bytes, written) if _in_memory(shape) else 0.0
    return total


def _read_of(module: HloModule, inner: HloComputation, name: str) -> float:
    """Return the bytes that a fused computation reads of a parameter."""
    total = 0.0
    for user in inner.users.get(name, ()):
        if user.opcode in _SLICES:
            total += sum(shape.bytes for shape in user.shapes) if user.operands[0] == name else math.inf
        elif user.opcode == "dynamic-update-slice" and user.operands[0] == name:
            continue  # updated in place: what is not replaced stays where it is
        elif user.opcode in ("tuple", "custom-call") or user.opcode in BY_OPCODE:
            continue  # a collective that is under way takes its buffers through every fusion
        elif user.opcode in _ALIKE:
            total += _read_of(module, inner, user.name)
        elif user.opcode == "fusion":
            called = module.computations[user.called[0]]
            total += sum(
                _read_of(module, called, called.parameters[at])
                for at, operand in enumerate(user.operands)
                if operand == name and at in called.parameters
            )
        else:
            return math.inf
    return total


def _written_by(inner: HloComputation, made: HloInstruction) -> float:
    """Return the bytes that a result of a fused computation writes: of an update in place, those of the update."""
    while made.opcode in ("bitcast", "reshape", "convert", "copy"):
        made = inner.instructions[made.operands[0]]
    if made.opcode == "parameter" or made.opcode in BY_OPCODE:
        return 0.0
    if made.opcode == "dynamic-update-slice":
        return inner.instructions[made.operands[1]].shapes[0].bytes
    return math.inf


def _operands(computation: HloComputation, instruction: HloInstruction) -> Iterable[HloShape]:
    """Return the arrays that an instruction reads."""
    return [shape for name in instruction.operands if (shape := _shape_of(computation, name)) is not None]


def _results(instruction: HloInstruction) -> tuple[HloShape, ...]:
    """Return the arrays that an instruction writes; a library's scratch memory is none."""
    if instruction.opcode == "custom-call" and len(instruction.shapes) > 1:
        return tuple(shape for shape in instruction.shapes if shape.dtype not in ("s8", "u8"))
    return instruction.shapes


def _shape_of(computation: HloComputation, name: str) -> HloShape | None:
    """Return the array that a name stands for; None for a tuple of several."""
    made = computation.instructions.get(name)
    return made.shapes[0] if made is not None and len(made.shapes) == 1 else None


def _in_memory(shape: HloShape) -> float:
    """Return the bytes of an array, if it is in the device's memory."""
    return shape.bytes if shape.space == 0 else 0.0


def _numbers(attributes: str, name: str) -> list[int]:
    """Return the numbers of an attribute such as ``lhs_contracting_dims={1}``."""
    found = re.search(rf"{name}=\{{([\d,]*)\}}", attributes)
    return [int(n) for n in found[1].split(",") if n] if found else []


def _config(instruction: HloInstruction) -> Any:
    """Return the compiler's own configuration of an instruction, parsed; empty if it has none that can be read."""
    at = instruction.attributes.find("backend_config={")
    if at < 0:
        return {}
    try:
        return json.JSONDecoder().raw_decode(instruction.attributes, at + len("backend_config="))[0]
    except ValueError:
        return {}
