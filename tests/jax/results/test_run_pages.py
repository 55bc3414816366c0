"""A run's figure as one page, of a run that was recorded and of one that was loaded."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import pathways_nb as pw

X = np.ones(8, np.float32)


def test_a_run_is_written_as_one_page(a: pw.Computation, tmp_path: Path) -> None:
    with pw.record() as run:
        pw.wait(a(X))
    run.to_html(tmp_path / "one.html", "timeline")
    text = (tmp_path / "one.html").read_text("utf-8")
    assert f"<title>{run.name}</title>" in text
    assert text.count("data-figure>") == 1
    assert json.dumps(run.summary_line().partition(",")[0]).strip(chr(34)) in text
    assert "<script src" not in text
    run.save(tmp_path / "one.run")
    pw.load(tmp_path / "one.run").to_html(tmp_path / "two.HTML", "timeline")
    assert (tmp_path / "two.HTML").stat().st_size == pytest.approx(len(text.encode()), rel=0.1)


@pytest.mark.parametrize(
    ("name", "views", "error"),
    [
        (
            "one.svg",
            (),
            r"to_html\('.*one.svg'\): the file's name must end in .html; run.savefig writes .svg and .png.",
        ),
        ("one.html", ("timelin",), "timelin"),
    ],
)
def test_a_wrong_page_is_refused(
    a: pw.Computation, tmp_path: Path, name: str, views: tuple[str, ...], error: str
) -> None:
    with pw.record() as run:
        pw.wait(a(X))
    with pytest.raises(ValueError, match=error):
        run.to_html(tmp_path / name, *views)
    assert not (tmp_path / name).exists()
