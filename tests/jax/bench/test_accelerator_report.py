"""``make gpu``: one page, whatever fails on the way."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import pathways_nb as pw
from pathways_nb.bench import _accelerator_parts as parts
from pathways_nb.bench import _accelerator_report as made
from pathways_nb.runtime import device_facts
from tests.support.fake_devices import FakeDevice


def fails(out: Path) -> parts.Seen:
    """Fail, with <angle brackets>."""
    raise ValueError("no <such> thing")


def sees(out: Path) -> parts.Seen:
    """See something."""
    (out / "seen.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    return parts.Seen("1 : 2.00", (("what was seen", "seen.svg"),))


def test_a_part_that_fails_is_on_the_page_and_stops_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parts, "PARTS", {"fails": fails, "sees": sees})

    def here(command: list[str], **_: Any) -> SimpleNamespace:
        assert made.main(command[3:]) == 0  # without a process of its own
        return SimpleNamespace(stderr="")

    with monkeypatch.context() as patched:
        patched.setattr(made.subprocess, "run", here)
        ended = [made.run_part(name, part.__doc__ or "", tmp_path) for name, part in parts.PARTS.items()]
    assert [part.failed for part in ended] == [True, False]
    assert ended[0].text.endswith("ValueError: no <such> thing")
    assert ended[1].text == "1 : 2.00"
    page = made.page("virtual CPU devices", "Install <it>.", ended, tmp_path)
    assert "This is a rehearsal on virtual CPU devices" in page
    assert "their times say nothing of a GPU or TPU. Install &lt;it&gt;.</p>" in page
    assert "no &lt;such&gt; thing" in page
    assert "2 parts in" in page
    assert "1 failed" in page
    assert "data:image/svg+xml;base64," in page
    assert "rehearsal" not in made.page("8 × NVIDIA H200", "", ended, tmp_path)


def test_a_part_whose_process_dies_has_the_end_of_what_it_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "\n".join(f"line {number}" for number in range(100))
    monkeypatch.setattr(made.subprocess, "run", lambda *_, **__: SimpleNamespace(stderr=said))
    part = made.run_part("dies", "Die.", tmp_path)
    assert part.failed
    assert part.text.splitlines() == [f"line {number}" for number in range(88, 100)]


def test_what_there_is_is_told(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    made.describe(parts)
    told = json.loads(capsys.readouterr().out)
    assert told["devices"] == "virtual CPU devices"
    assert "start again." in told["missing"] or "For TPUs of this machine: pip install" in told["missing"]
    assert list(told["parts"]) == list(parts.PARTS)
    assert all(told["parts"].values())
    monkeypatch.setattr(device_facts, "found_devices", lambda: ("gpu", [FakeDevice(at) for at in range(2)]))
    assert parts.machine() == parts.Machine("gpu", 2, "2 × NVIDIA H100 80GB HBM3")


@pytest.mark.parametrize(
    ("slices", "each"),
    [((8,), 4), ((6,), 2), ((2,), 1), ((16, 16), 16), ((16, 16, 16), 16), ((4,) * 5, 4), ((6, 4), 4)],
)
def test_two_places_are_as_large_as_a_power_of_two(
    controller: pw.Controller, monkeypatch: pytest.MonkeyPatch, slices: tuple[int, ...], each: int
) -> None:
    devices = [FakeDevice(0, more={"slice_index": at}) for at, count in enumerate(slices) for _ in range(count)]
    monkeypatch.setattr(device_facts, "found_devices", lambda: ("gpu", devices))
    found = parts._two_places()
    pw.attach("cpu", islands=1, devices_per_island=1)  # these devices are none that a later test could use
    assert [(place.size, place.island) for place in found] == [(each, 0), (each, 1)]


def test_benches_get_accelerators_where_there_are_so_many(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    asked: list[Any] = []
    monkeypatch.setattr(pw, "attach", pw.attach)
    monkeypatch.setattr(parts, "_attach", lambda kind, **options: asked.append((kind, options)))
    monkeypatch.setattr(parts, "machine", lambda: parts.Machine("gpu", 4, "four"))
    parts.take_over()
    pw.attach("cpu", islands=1, devices_per_island=4, policy="fifo")
    pw.attach("cpu", islands=2, devices_per_island=4)
    pw.attach("sim:here")
    assert asked == [
        ("gpu", {"islands": 1, "devices_per_island": 4, "policy": "fifo"}),
        ("cpu", {"islands": 2, "devices_per_island": 4}),
        ("sim:here", {}),
    ]
    assert capsys.readouterr().out == "8 devices are asked for and 4 are here: virtual CPU devices instead\n"
