"""Lines of a recorded text follow the source: files that moved, cells that were edited."""

from __future__ import annotations

from pathways_nb.adopt import recorded_lines
from pathways_nb.adopt.step_fingerprint import CountedOperation

TEXT = """HloModule step

FileNames
1 "/home/ann/train.py"
2 "/home/ann/.venv/lib/python3.11/site-packages/optax/transform.py"

FunctionNames
1 "loss"

FileLocations
1 {file_name_id=1 function_name_id=1 line=12 end_line=13 column=4 end_column=9}
2 {file_name_id=1 function_name_id=1 line=20 end_line=20 column=4 end_column=9}
3 {file_name_id=2 function_name_id=1 line=12 end_line=12 column=4 end_column=9}

StackFrames
1 {file_location_id=1 parent_frame_id=1}

ENTRY %main { }
"""
MARKS = [
    CountedOperation("dot_general a", ("/home/ann/train.py", 12)),
    CountedOperation("dot_general a", ("/home/ann/train.py", 12)),
    CountedOperation("reduce_sum b", None),
]


def test_a_stored_text_names_no_folder_of_a_machine():
    names = recorded_lines.portable_names([TEXT], [*MARKS, CountedOperation("exp c", ("/home/bob/train.py", 3))])
    assert names == {
        "/home/ann/train.py": "/recorded/train.py",
        "/home/ann/.venv/lib/python3.11/site-packages/optax/transform.py": "/site-packages/optax/transform.py",
        "/home/bob/train.py": "/recorded/2/train.py",
    }
    text = recorded_lines.portable(TEXT, names)
    assert "home" not in text
    assert '1 "/recorded/train.py"\n2 "/site-packages/optax/transform.py"\n' in text


def test_lines_are_where_their_operations_are_now():
    now = [
        CountedOperation("dot_general a", ("/tmp/ipykernel_7/1.py", 3)),
        CountedOperation("dot_general a", ("/tmp/ipykernel_7/1.py", 3)),
        CountedOperation("reduce_sum b", ("/tmp/ipykernel_7/1.py", 9)),
    ]
    moved = recorded_lines.moved_lines(recorded_lines.lines_by_key(MARKS), recorded_lines.lines_by_key(now))
    assert moved == {("/home/ann/train.py", 12): ("/tmp/ipykernel_7/1.py", 3)}
    text = recorded_lines.with_lines(TEXT, moved)
    assert '2 "/home/ann/.venv/lib/python3.11/site-packages/optax/transform.py"\n3 "/tmp/ipykernel_7/1.py"\n' in text
    assert "1 {file_name_id=3 function_name_id=1 line=3 end_line=4 column=4 end_column=9}" in text
    # A line without such an operation moves with the nearest one above it.
    assert "2 {file_name_id=3 function_name_id=1 line=11 end_line=11 column" in text
    assert "3 {file_name_id=2 function_name_id=1 line=12 end_line=12 column" in text
    assert text.endswith(TEXT[TEXT.index("\nStackFrames") :])


def test_lines_in_warnings_follow_as_well():
    said = 'cannot go from {a} to {b} for %x = f32[8] dot(), metadata={op_name="f" source_file="/home/ann/train.py" source_line=14}'
    names = recorded_lines.portable_names([TEXT], MARKS)
    stored = recorded_lines.portable(said, names)
    assert 'source_file="/recorded/train.py" source_line=14}' in stored
    moved = {("/recorded/train.py", 12): ("/now/train.py", 3)}
    assert 'source_file="/now/train.py" source_line=5}' in recorded_lines.with_lines(stored, moved)


def test_nothing_in_common_changes_nothing():
    assert recorded_lines.with_lines(TEXT, recorded_lines.moved_lines({"a": [("x", 1)]}, {"b": [("x", 1)]})) == TEXT
