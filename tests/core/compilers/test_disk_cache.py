"""The cache of compiled programs: content decides, old entries go first, damage and a full disk lose nothing else."""

from __future__ import annotations

import os

import pytest

from pathways_nb.compilers import disk_cache
from pathways_nb.compilers.disk_cache import compiler_cache, key_of


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))


def test_what_was_written_is_read_by_its_content():
    one, other = key_of({"options": {"a": 1}}, b"program"), key_of({"options": {"a": 2}}, b"program")
    assert one != other
    assert key_of({"options": {"a": 1}}, b"another") != one
    disk_cache.write(one, {"text": "HloModule"})
    assert disk_cache.read(one) == {"text": "HloModule"}
    assert disk_cache.read(other) is None
    cache = compiler_cache()
    assert (cache.entries, cache.size_bytes > 0) == (1, True)
    assert repr(cache) == f"<compiler cache {cache.folder}: 1 program, {cache.size_bytes / 2**20:.1f} MiB>"
    assert cache.clear() == 1
    assert (cache.entries, cache.clear()) == (0, 0)


def test_a_damaged_entry_counts_as_none():
    key = key_of({}, b"")
    disk_cache.write(key, {"text": "HloModule" * 100})
    (path,) = compiler_cache().folder.glob("*.json.gz")
    whole = path.read_bytes()
    for damaged in (b"", whole[:30], whole[:-1], b"x" + whole[1:], whole[:10] + b"\xff" * 8 + whole[18:]):
        path.write_bytes(damaged)
        assert disk_cache.read(key) is None


def test_entries_used_longest_ago_are_removed_first():
    keys = [key_of({}, bytes([n])) for n in range(4)]
    for n, key in enumerate(keys):
        disk_cache.write(key, {"text": os.urandom(2000).hex()})
        os.utime(compiler_cache().folder / f"{key}.json.gz", (n, n))
    disk_cache.read(keys[0])  # used last now
    size = compiler_cache().size_bytes
    compiler_cache().trim(size * 5 // 8)
    assert [disk_cache.read(key) is not None for key in keys] == [True, False, False, True]


def test_a_cache_that_cannot_be_written_warns_and_goes_on(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    with pytest.warns(
        UserWarning, match=r"could not be kept in .*; free some space, or set XDG_CACHE_HOME to another folder\."
    ):
        disk_cache.write(key_of({}, b""), {"text": ""})
