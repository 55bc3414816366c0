"""A trace.json is read in pieces, and only a damaged or foreign one is refused, by the character that is wrong."""

from __future__ import annotations

import gzip
import json
import tracemalloc

import pytest

from pathways_nb.runtime.recorded import trace_json
from pathways_nb.runtime.recorded.trace_json import TraceJson
from pathways_nb.util.json_text import DamagedError

EVENTS = [
    {"name": f'größe {i} \\ "quoted" ]}}', "ts": i * 1.5, "args": {"list": [1, {"a": None}], "n": i}} for i in range(50)
]


@pytest.mark.parametrize("size", [1, 7, 64, 2**20])
@pytest.mark.parametrize("ending", ["", ".gz"])
def test_where_pieces_end_does_not_matter(tmp_path, monkeypatch, size, ending) -> None:
    monkeypatch.setattr(trace_json, "PIECE", size)
    text = json.dumps({"before": {"x": [1, 2]}, "traceEvents": EVENTS, "after": -12.5}, ensure_ascii=False, indent=1)
    path = tmp_path / f"a.json{ending}"
    path.write_bytes(gzip.compress(text.encode()) if ending else text.encode())
    reader = TraceJson(path)
    assert list(reader.events()) == EVENTS
    assert reader.beside == {"before": {"x": [1, 2]}, "after": -12.5}
    assert reader.pieces == -(-len(text.encode()) // size)


def test_a_list_alone_may_lack_its_end_as_chrome_allows(tmp_path) -> None:
    text = json.dumps(EVENTS)
    for written in (text, text[:-1], text[:-1] + ",\n"):
        (tmp_path / "a.json").write_text(written)
        assert list(TraceJson(tmp_path / "a.json").events()) == EVENTS


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (b"", "it ends in the middle, after 0 characters"),
        (b"PK\x03\x04", "it is no JSON object or list"),
        (b'{"nodes": 3}', "it has no traceEvents, so it is no trace"),
        (b'{"traceEvents": {}}', "traceEvents is no list"),
        (b'{"traceEvents": [3]}', "an event is no object"),
        (b'{"traceEvents": [{"a": 1}, {"b"', "it ends in the middle, after 31 characters"),
        (b'{"traceEvents": [{"a": 1}', "it ends in the middle, after 25 characters"),
        (
            b'{"traceEvents": [{"a": 1}, {"b" 2}, {"c": 3}                    ]}',
            "character 32: Expecting ':' delimiter",
        ),
        (b'{"traceEvents": []; "a": 1}', "is not ',' or '}'"),
        (b"\x1f\x8b\x08\x00damaged", "it cannot be unpacked"),
        (gzip.compress(json.dumps({"traceEvents": EVENTS}).encode())[:-30], "it cannot be unpacked"),
    ],
)
def test_what_is_wrong_is_said(tmp_path, text, said) -> None:
    (tmp_path / "a.json").write_bytes(text)
    with pytest.raises(DamagedError) as error:
        list(TraceJson(tmp_path / "a.json").events())
    assert said in str(error.value)


def test_a_large_file_does_not_stand_in_memory(tmp_path) -> None:
    """Thirty megabytes, of which a few pieces are there at once; the part that was read rises to the whole."""
    event, shares = json.dumps({"name": "k" * 300, "ts": 1.0, "args": {"stream": 7}}), []
    with (tmp_path / "a.json").open("w") as file:
        file.write('{"traceEvents": [')
        file.writelines(f"{event},\n" for _ in range(85_000))
        file.write(f"{event}]}}")
    reader = TraceJson(tmp_path / "a.json", shares.append)
    tracemalloc.start()
    try:
        assert sum(1 for _ in reader.events()) == 85_001
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert (tmp_path / "a.json").stat().st_size > 28e6
    assert most < 8 * trace_json.PIECE
    assert reader.pieces > 28
    assert shares == sorted(shares)
    assert shares[-1] == 1.0
