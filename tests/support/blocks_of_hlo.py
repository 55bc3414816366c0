"""The text of a compiled step of many blocks, as large as a test needs."""

from __future__ import annotations

_HEAD = """HloModule jit_step, is_scheduled=true, num_partitions=8

FileNames
1 "/home/me/train.py"

FunctionNames
1 "step"

FileLocations
1 {file_name_id=1 function_name_id=1 line=12 end_line=12 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

ENTRY %main (x: f32[512,512]) -> f32[512,512] {
  %x = f32[512,512] parameter(0)
"""


def blocks_of_hlo(blocks: int, products: int) -> str:
    """Return a chain of blocks, ``L/layers_0`` and so on, each a chain of products.

    Args:
        blocks: their number.
        products: of each.
    """
    lines, before = [_HEAD], "x"
    for block in range(blocks):
        for number in range(products):
            name = f"dot.{block}.{number}"
            root = "ROOT " if (block, number) == (blocks - 1, products - 1) else ""
            lines.append(
                f"  {root}%{name} = f32[512,512] dot(%{before}, %{before}), lhs_contracting_dims={{1}}, "
                f"rhs_contracting_dims={{0}}, metadata={{op_name="
                f'"jit(step)/jvp(L)/layers_{block}/mlp/dot_general" stack_frame_id=1}}\n'
            )
            before = name
    return "".join([*lines, "}\n"])
