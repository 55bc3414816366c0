"""Compilers that end otherwise than they should: what they have written until then is taken only if it is whole."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from pathways_nb.compilers import compiling, disk_cache, packages
from pathways_nb.compilers.compiling import CompilerError, compile_for

TARGET: Any = SimpleNamespace(kind="gpu", platform="cuda", arguments={"topology_name": "1x1x1"}, devices=1)
PROGRAM: Any = SimpleNamespace(program=b"program", mesh=[["x", 1, "Auto"]], donated=[])
WRITES = """
import os, pathlib, signal, sys
folder = pathlib.Path(sys.argv[1])
(folder / "devices.json").write_text("[]")
(folder / "dump").mkdir()
begin = str(folder / "dump" / "module_0000.jit_f.sm_9.0")
pathlib.Path(begin + "_gpu_after_optimizations.txt").write_text("HloModule jit_f")
"""


@pytest.fixture
def compiler(tmp_path, monkeypatch):
    """Sets the script that takes the compiler's place."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(packages, "search_path", lambda kind: None)
    monkeypatch.setattr(packages, "version_of", lambda kind: "gpu 1")

    def write(text: str) -> None:
        script = tmp_path / "compiler.py"
        script.write_text(text)
        monkeypatch.setattr(compiling.child, "__file__", str(script))

    return write


def test_half_of_what_a_compiler_writes_is_not_taken_if_it_dies(compiler):
    compiler(WRITES + "os.kill(os.getpid(), signal.SIGKILL)")
    with pytest.raises(CompilerError) as died:
        compile_for(PROGRAM, TARGET)
    assert str(died.value) == (
        "gpu 1 ended without a word about the program; the end of what it printed: SIGKILL; perhaps the memory of this "
        "machine was used up"
    )
    compiler(WRITES + "print('bad access', flush=True); os.kill(os.getpid(), signal.SIGSEGV)")
    with pytest.raises(CompilerError, match=r"the end of what it printed: SIGSEGV: bad access$"):
        compile_for(PROGRAM, TARGET)
    fatal = "F1128 07:41:53.2    8579 target.cc:1737] Check failed: y <= 16 (32 vs. 16)"
    compiler(WRITES + f"print({fatal!r}, 'stack' * 999, sep='\\n', flush=True); os.abort()")
    with pytest.raises(CompilerError, match=r"printed: SIGABRT: Check failed: y <= 16 \(32 vs\. 16\)$"):
        compile_for(PROGRAM, TARGET)
    assert not disk_cache.compiler_cache().entries


def test_what_a_compiler_warned_of_layouts_is_kept_with_its_text(compiler):
    warned = "[SPMD] Involuntary full rematerialization. The compiler cannot go from sharding"
    lines = f"W1128 11:07:12.58   32024 spmd_partitioner.cc:656] {warned}", "W1128 11:07:12.58   2 a.cc:1] Old."
    compiler(f"print({lines[0]!r}, {lines[1]!r}, {lines[0]!r}, sep='\\n', flush=True)" + WRITES)
    assert compile_for(PROGRAM, TARGET).warned == warned
    compiler("raise SystemExit(1)")
    assert compile_for(PROGRAM, TARGET).warned == warned, "from the cache"


def test_an_entry_of_another_form_counts_as_none(compiler):
    compiler(WRITES)
    assert compile_for(PROGRAM, TARGET).text == "HloModule jit_f"
    compiler("raise SystemExit(1)")
    assert compile_for(PROGRAM, TARGET).text == "HloModule jit_f", "from the cache"
    (path,) = disk_cache.compiler_cache().folder.glob("*.json.gz")
    for found in ({}, {"text": 5}):
        disk_cache.write(path.name.removesuffix(".json.gz"), found)
        with pytest.raises(CompilerError, match="the end of what it printed: nothing"):
            compile_for(PROGRAM, TARGET)
