"""Schedules with a canonical order are equal to it action for action, and keep their closed forms over a grid."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pathways_nb as pw
from pathways_nb.parallel.schedules import registry
from pathways_nb.parallel.schedules.closed_forms import Times
from pathways_nb.parallel.schedules.schedule import Schedule
from tests.core.schedules.test_schedules import OTHERS

DIGESTS = json.loads((Path(__file__).parent / "canonical_schedules.json").read_text())["digests"]
FILES = {
    "dualpipe": "deepseek-dualpipe",
    "dualpipe-v": "torch-dualpipev deepseek-dualpipev",
    "eager-1f1b": "jaxpp-eager1f1b",
    "gpipe": "torch-gpipe",
    "1f1b": "torch-1f1b",
    "interleaved-1f1b": "torch-interleaved1f1b",
    "interleaved-zb": "torch-interleavedzerobubble",
    "looped-bfs": "torch-loopedbfs",
    "zb-v": "torch-zbvzerobubble",
    "seq1f1b": "sail-seq1f1b",
    "terapipe": "terapipe",
}
TIMES = [Times(*each) for each in [(1, 1, 1), (1, 1, 0.5), (1, 2, 1), (2, 1, 1), (1, 1, 2), (1, 1.25, 0.75)]]

# Two devices, as the papers draw them.
DRAWN = {
    ("gpipe", 2, None): """
        0F0 0F1 0B0 0B1
        1F0 1F1 1B0 1B1""",
    ("1f1b", 3, None): """
        0F0 0F1 0B0 0F2 0B1 0B2
        1F0 1B0 1F1 1B1 1F2 1B2""",
    ("eager-1f1b", 4, None): """
        0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3
        1F0 1B0 1F1 1B1 1F2 1B2 1F3 1B3""",
    ("interleaved-1f1b", 2, 2): """
        0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1
        1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1""",
    ("interleaved-1f1b", 3, 2): """
        0F0 0F1 0F2 2F0 2F1 2F2 2B0 2B1 2B2 0B0 0B1 0B2
        1F0 1F1 1F2 3F0 3B0 3F1 3B1 3F2 3B2 1B0 1B1 1B2""",
    ("looped-bfs", 2, 2): """
        0F0 0F1 2F0 2F1 2B1 2B0 0B1 0B0
        1F0 1F1 3F0 3F1 3B1 3B0 1B1 1B0""",
    ("interleaved-zb", 2, 2): """
        0F0 0F1 2F0 2F1 2I0 2W0 2I1 2W1 0I0 0W0 0I1 0W1
        1F0 1F1 3F0 3I0 3F1 3I1 3W0 1I0 3W1 1I1 1W0 1W1""",
    ("zb-v", 3, None): """
        0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 3W1 0I0 0W0 3F2 3I2 3W2 0I1 0W1 0I2 0W2
        1F0 2F0 1F1 2F1 2I0 2W0 1F2 1I0 1W0 2F2 2I1 2W1 1I1 2I2 1I2 1W1 2W2 1W2""",
    ("dualpipe", 4, None): """
        a0F0 b1F0 a0F1 b1B0 (b1F1;a0B0)OVERLAP_F_B b1B1 a0I1 a0W1
        b0F0 a1F0 b0F1 a1B0 (a1F1;b0B0)OVERLAP_F_B a1B1 b0I1 b0W1""",
    ("dualpipe-v", 4, None): """
        0F0 0F1 0F2 3F0 3I0 3W0 3F1 (0F3;3B1)OVERLAP_F_B (3F2;0B0)OVERLAP_F_B
        3B2 (3F3;0B1)OVERLAP_F_B 3B3 0I2 0W2 0I3 0W3
        1F0 2F0 1F1 2F1 1F2 2B0 (2F2;1B0)OVERLAP_F_B (1F3;2B1)OVERLAP_F_B (2F3;1B1)OVERLAP_F_B
        2B2 1B2 2I3 1I3 2W3 1W3""",
    ("terapipe", 2, 2): """
        0F0.0 0F0.1 0F1.0 0F1.1 0B1.1 0B1.0 0B0.1 0B0.0
        1F0.0 1F0.1 1F1.0 1F1.1 1B1.1 1B1.0 1B0.1 1B0.0""",
    ("seq1f1b", 2, 2): """
        0F0.0 0F0.1 0F1.0 0B0.1 0F1.1 0B0.0 0B1.1 0B1.0
        1F0.0 1F0.1 1B0.1 1F1.0 1B0.0 1F1.1 1B1.1 1B1.0""",
}


def made(name: str, devices: int, microbatches: int, parts: int | None) -> Schedule:
    """A schedule with so many chunks, or token slices, if it has them."""
    has = registry.kind_of(name).defaults
    return pw.schedule(name, devices, microbatches, **dict.fromkeys(has, parts))


def grid(name: str, devices: range, parts: tuple[int, ...]) -> Iterator[Schedule]:
    """All sizes that a schedule has, of those."""
    for p in devices:
        for m in range(1, 4 * p + 1):
            for part in parts if registry.kind_of(name).defaults else (None,):
                try:
                    yield made(name, p, m, part)
                except pw.UsageError as refused:
                    assert f"schedule {name!r}: " in str(refused)


@pytest.mark.parametrize(("name", "microbatches", "parts"), DRAWN)
def test_on_two_devices_it_is_as_the_papers_draw_it(name: str, microbatches: int, parts: int | None) -> None:
    drawn = DRAWN[name, microbatches, parts].split()
    assert made(name, 2, microbatches, parts).text.split() == drawn


@pytest.mark.parametrize(("name", "size"), [(name, size) for name, sizes in DIGESTS.items() for size in sizes])
def test_it_is_the_list_of_another_implementation_for_every_number_of_microbatches(name: str, size: str) -> None:
    p, parts = (int(number) for number in size.split("x"))
    digest = hashlib.sha256()
    for schedule in grid(name, range(p, p + 1), (parts,)):
        m = schedule.size.microbatches
        if name != "1f1b" or m >= p:  # torch refuses fewer; there is nothing wrong with them
            digest.update(f"{m}\n{schedule.text}\n".encode())
    assert digest.hexdigest()[:16] == DIGESTS[name][size]


@pytest.mark.parametrize("name", FILES)
def test_it_is_the_reference_file(name: str) -> None:
    found = [file for file in OTHERS if file["name"].rpartition("-")[0] in FILES[name].split()]
    assert found
    for file in found:
        parts = file["seq_slices"] if file["seq_slices"] > 1 or name == "terapipe" else file["chunks_per_rank"]
        ours = made(name, file["p"], file["microbatches"], parts)
        assert [" ".join(map(str, row)) for row in ours.rows] == file["ranks"], file["name"]


@pytest.mark.parametrize("name", FILES)
def test_every_size_is_sound_and_keeps_its_closed_forms(name: str) -> None:
    kind, held = registry.kind_of(name), 0
    assert kind.bubble
    assert kind.peak
    parts = (2,) if name in ("zb-v", "dualpipe-v") else (1, 2, 3)
    for schedule in grid(name, range(1, 6), parts):
        schedule.check()
        size = schedule.size
        expected = [kind.peak.value(size, device) for device in range(size.devices)]
        np.testing.assert_allclose(schedule.timing().peaks, expected, err_msg=str(size))
        for times in TIMES:
            if kind.bubble.where(size, times):
                held += 1
                idle = schedule.makespan(*times) - size.microbatches * (times.F + times.B)
                assert idle == pytest.approx(kind.bubble.value(size, times), abs=1e-9), (size, times)
    assert held > 10


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ("interleaved-1f1b", 3, 10),
            "schedule 'interleaved-1f1b': microbatches=10 does not fit devices=3: 3 rounds (m // p) do not divide them. "
            "The nearest that fits is microbatches=9.",
        ),
        (("interleaved-zb", 4, 14), "3 rounds (m // p) do not divide them. The nearest that fits is microbatches=15."),
        (
            ("dualpipe", 3, 8),
            "schedule 'dualpipe': devices=3 is odd: its two directions mirror each other. The nearest that fits is "
            "devices=2.",
        ),
        (
            ("dualpipe", 4, 9),
            "schedule 'dualpipe': microbatches=9 does not fit devices=4: half of them go each way, so they are even, "
            "and at least 2·devices. The nearest that fits is microbatches=8.",
        ),
        (("dualpipe", 4, 6), "and at least 2·devices. The nearest that fits is microbatches=8."),
        (
            ("dualpipe-v", 4, 7),
            "schedule 'dualpipe-v': microbatches=7 does not fit devices=4: they are at least 2·devices. The nearest "
            "that fits is microbatches=8.",
        ),
        (
            ("zb-v", 4, 8, 3),
            "schedule 'zb-v': chunks=3, but each device has two arms of a V. Take chunks=2.",
        ),
        (("dualpipe-v", 4, 8, 1), "chunks=1, but each device has two arms of a V. Take chunks=2."),
    ],
)
def test_a_size_that_it_does_not_have_is_refused_with_the_rule(arguments: tuple[object, ...], said: str) -> None:
    with pytest.raises(pw.UsageError) as refused:
        pw.schedule(*arguments)
    assert str(refused.value).endswith(said)


def test_they_are_listed_from_the_simplest_on() -> None:
    listed = [name for name in pw.schedules() if name in FILES]
    assert listed == [
        "gpipe", "1f1b", "eager-1f1b", "interleaved-1f1b", "looped-bfs", "interleaved-zb", "zb-v", "dualpipe",
        "dualpipe-v", "terapipe", "seq1f1b",
    ]  # fmt: skip
