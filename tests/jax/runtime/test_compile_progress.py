"""Progress of compiling: how many nodes of how many."""

from __future__ import annotations

import itertools
import re

import pathways_nb as pw


def test_compiling_says_how_many_of_the_nodes_are_done(controller, monkeypatch, capsys) -> None:
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
    said = [line for line in capsys.readouterr().err.splitlines() if line.startswith("compiling")]
    told = [re.fullmatch(r"compiling (embed|block): ([012]) of 2 done \(\d+ s\)", line) for line in said]
    assert {one and one[1] for one in told} == {"embed", "block"}
    counts = [int(one[2]) for one in told if one]
    assert counts == sorted(counts)
