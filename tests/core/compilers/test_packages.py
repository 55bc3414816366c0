"""The compilers' packages: versions that fit the installed JAX, where they lie, and words on how to get them."""

from __future__ import annotations

import re
import sys

import pytest

from pathways_nb.compilers import packages
from pathways_nb.compilers.presets import PRESETS, preset
from pathways_nb.errors import UsageError


@pytest.mark.parametrize("kind", packages.PACKAGES)
def test_jax_itself_says_which_version_fits(kind):
    assert re.match(rf"{packages.PACKAGES[kind].name}[=<>]", packages.requirement(kind))


def test_a_compiler_that_is_not_there_is_refused_with_the_command(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert not packages.is_installed("tpu")
    text = (
        r"the TPU compiler is not installed\. `python -m pathways_nb compilers install tpu` installs it into a folder"
    )
    with pytest.raises(UsageError, match=text):
        packages.search_path("tpu")


def test_an_installer_that_fails_leaves_nothing_and_its_last_words(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    fails = [sys.executable, "-c", "import sys; sys.exit('no such version')"]
    monkeypatch.setattr(packages, "_installer", lambda: fails)
    said = []
    with pytest.raises(UsageError, match=r"libtpu.* could not be installed: no such version"):
        packages.install("tpu", said.append)
    assert said == [f"installing {packages.requirement('tpu')} into {packages.folder_of('tpu')}"]
    assert list(tmp_path.rglob("*")) == [] or all(path.is_dir() for path in tmp_path.rglob("*"))
    assert not packages.is_installed("tpu")


def test_every_preset_has_options_and_a_source():
    for name, one in PRESETS.items():
        assert one.options, name
        assert one.source, name
        assert preset(name) == one.options


def test_an_unknown_preset_names_the_nearest():
    with pytest.raises(
        UsageError, match=r"preset\('nvidia'\): there are no such compiler options; there is 'nvidia-maxtext'\."
    ):
        preset("nvidia")
