"""Lines of a step that is a library's: its own, not the line that asked for its text; kernels that no text explains."""

from __future__ import annotations

import pytest

from pathways_nb.cost.hlo.hlo_schedule import schedule_of
from pathways_nb.cost.hlo.hlo_text import parse

LIBRARY = "/env/lib/python3.12/site-packages"
INSIDE = (f"{LIBRARY}/flax/nnx/linear.py", f"{LIBRARY}/trainer/model.py", f"{LIBRARY}/trainer/sft.py",
          f"{LIBRARY}/flax/nnx/compilation.py")  # fmt: skip
OUTSIDE = (f"{LIBRARY}/pathways_nb/compilers/lowered.py", "/home/me/show.py")
CALL = 'custom_call_target="TARGET", metadata={op_name="jit(f)/pallas_call" stack_frame_id=FRAME}'
KERNEL = f"""ENTRY %main (x: f32[8,128]) -> f32[8,128] {{
  %x = f32[8,128]{{1,0}} parameter(0)
  %y = f32[8,128]{{1,0}} custom-call(f32[8,128]{{1,0}} %x), {CALL}
  ROOT %z = f32[8,128]{{1,0}} custom-call(f32[8,128]{{1,0}} %y), {CALL}
}}"""


def text_with(files: tuple[str, ...], kernel: str = "__gpu$xla.gpu.triton") -> str:
    """A module whose kernel was called through some files, the innermost first; a file's line is 10 times its number."""
    numbers = range(1, len(files) + 1)
    names = "\n".join(f'{at} "{file}"' for at, file in zip(numbers, files, strict=True))
    places = "\n".join(
        f"{at} {{file_name_id={at} function_name_id=1 line={10 * at} end_line={10 * at}}}" for at in numbers
    )
    # Frame 1 is the outermost; callers are printed one too high.
    frames = "\n".join(f"{at} {{file_location_id={len(files) + 1 - at} parent_frame_id={at}}}" for at in numbers)
    tables = f'FileNames\n{names}\n\nFunctionNames\n1 "call"\n\nFileLocations\n{places}\n\nStackFrames\n{frames}\n\n'
    return f"HloModule f, is_scheduled=true\n\n{tables}{KERNEL.replace('TARGET', kernel).replace('FRAME', str(len(files)))}\n"


@pytest.mark.parametrize(
    ("files", "line"),
    [
        pytest.param((*INSIDE, *OUTSIDE), "model.py:20", id="a library's step"),
        pytest.param((INSIDE[0], "/home/me/train.py", *OUTSIDE), "train.py:20", id="the user's step"),
        pytest.param((INSIDE[1], "/home/me/train.py", INSIDE[3], *OUTSIDE), "train.py:20", id="a library inside of it"),
        pytest.param((INSIDE[0], *OUTSIDE), "linear.py:10", id="a framework's own step"),
        pytest.param(OUTSIDE, "", id="nothing but the call"),
    ],
)
def test_a_librarys_step_has_lines_of_that_library_and_not_the_line_that_asked_for_its_text(files, line):
    schedule = schedule_of(parse(text_with(files)), 1)
    assert {action.line for action in schedule.actions} == {line}


def test_a_kernel_whose_work_the_text_does_not_say_is_noted_once_for_its_line():
    (note,) = schedule_of(parse(text_with((*INSIDE, *OUTSIDE))), 1).notes
    assert note == "the kernel at model.py:20 counts by its bytes alone, as what it computes is not in the text"
    assert schedule_of(parse(text_with(INSIDE, "TopK")), 1).notes == ()
