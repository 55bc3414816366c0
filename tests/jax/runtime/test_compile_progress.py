"""Progress of compiling: which of how many."""

from __future__ import annotations

import itertools
import re

import pathways_nb as pw


def test_compiling_says_which_of_how_many(controller, monkeypatch, capsys) -> None:
    """On a clock on which everything takes long."""
    monkeypatch.setattr("pathways_nb.util.progress.monotonic", itertools.count(0.0, 3.0).__next__)
    there = pw.virtual_slice(2)

    @pw.jit(on=there)
    def embed(v):
        return v * 2

    @pw.jit(on=there)
    def block(v):
        return v + 1

    assert float(pw.program(lambda v: block(embed(v)))(1.0)) == 3.0
    said = capsys.readouterr().err.splitlines()
    assert all(re.fullmatch(r"compiling [12] of [12]: (embed|block) \(\d+ s\)", line) for line in said)
    assert {line.split()[-3] for line in said} == {"embed", "block"}
