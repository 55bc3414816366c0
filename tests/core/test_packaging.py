"""What is installed, however it is installed, is one thing; what is stored is clean."""

from __future__ import annotations

import re
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet

from tests.conftest import ROOT

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
ENVIRONMENT = yaml.safe_load((ROOT / "environment.yml").read_text())
CITATION = yaml.safe_load((ROOT / "CITATION.cff").read_text())


MADE = re.compile(r"/(\.(?!ci|gitignore)|build/|dist/|.*__pycache__/)")
"""Names of files that are not part of what is stored."""


EXTRAS = set(PROJECT["optional-dependencies"]) - {"cuda", "tpu", "pathways"}
"""All but those of one kind of machine, which download gigabytes that are of no use elsewhere."""


def stored_files() -> list[Path]:
    """What git has or would take; outside a checkout, what is not hidden and not made by a build."""
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        check=False,
    )
    if listed.returncode:
        return [path for path in ROOT.rglob("*") if path.is_file() and not MADE.search(f"/{path.relative_to(ROOT)}")]
    return [ROOT / name for name in listed.stdout.decode().split("\0") if name and (ROOT / name).is_file()]


def conda_packages() -> dict[str, str]:
    """Name and version range of each package that conda itself installs."""
    named = [entry for entry in ENVIRONMENT["dependencies"] if isinstance(entry, str)]
    return {name: wanted.strip() for name, _, wanted in (entry.partition(" ") for entry in named)}


def pip_lines() -> list[str]:
    """What conda hands on to pip."""
    return [line for entry in ENVIRONMENT["dependencies"] if isinstance(entry, dict) for line in entry["pip"]]


def test_conda_users_get_this_project_with_every_extra_and_nothing_else():
    (line,) = pip_lines()
    match = re.fullmatch(r"-e \.\[([\w,]+)\]", line)
    assert match, f"environment.yml: pip line {line!r}"
    assert set(match[1].split(",")) == EXTRAS
    assert ENVIRONMENT["name"] == PROJECT["name"]
    assert ENVIRONMENT["channels"] == ["conda-forge"]


def test_a_package_that_conda_installs_has_the_range_of_pyproject():
    ranges = {one.name.lower(): one.specifier for one in map(Requirement, PROJECT["dependencies"])}
    for name, wanted in conda_packages().items():
        if name not in {"python", "pip"}:
            assert SpecifierSet(wanted) == ranges[name], f"environment.yml: {name} {wanted}"


def test_every_file_names_the_same_oldest_python():
    wanted = SpecifierSet(PROJECT["requires-python"])
    (bound,) = wanted
    assert bound.operator == ">="
    assert bound in set(SpecifierSet(conda_packages()["python"])), "environment.yml: python"
    script = (ROOT / ".ci" / "environment").read_text()
    assert re.findall(r"^oldest=(\d+)", script, re.MULTILINE) == [bound.version.removeprefix("3.")], ".ci/environment"


def test_the_wheel_leaves_out_the_benches_and_nothing_else():
    wheel = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]["targets"]["wheel"]
    assert wheel["exclude"] == ["pathways_nb/bench"]
    assert "notebooks" in wheel["only-include"]
    importers = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "pathways_nb").rglob("*.py")
        if "pathways_nb.bench" in path.read_text() and "bench" not in path.relative_to(ROOT / "pathways_nb").parts
    ]
    assert importers == ["pathways_nb/__main__.py"], "only the command line may know the benches"


def test_requirements_are_ranges():
    extras = [line for lines in PROJECT["optional-dependencies"].values() for line in lines]
    for one in map(Requirement, [*PROJECT["dependencies"], *extras]):
        assert one.url is None
        assert any(bound.operator == ">=" for bound in one.specifier), f"{one}: no lower bound"
        assert not any(bound.operator in {"==", "==="} for bound in one.specifier), f"{one}: pinned"


def test_the_licence_is_named_the_same_everywhere():
    text = (ROOT / "LICENSE").read_text()
    assert text.split()[:4] == ["Apache", "License", "Version", "2.0,"]
    assert "END OF TERMS AND CONDITIONS" in text
    assert PROJECT["license"] == CITATION["license"] == "Apache-2.0"
    assert PROJECT["license-files"] == ["LICENSE"]


def test_the_citation_is_of_this_version_and_names_the_papers():
    assert CITATION["cff-version"] == "1.2.0"
    assert (CITATION["title"], CITATION["version"]) == (PROJECT["name"], PROJECT["version"])
    assert CITATION["authors"] == PROJECT["authors"]
    papers = {paper["title"].partition(":")[0]: paper for paper in CITATION["references"]}
    assert list(papers) == ["Pathways", "TeraPipe", "SimpleFSDP"]
    for paper in papers.values():
        assert {"type", "title", "authors", "year", "identifiers"} <= set(paper)
        assert all(set(author) == {"family-names", "given-names"} for author in paper["authors"])


def test_the_command_line_of_pip_names_every_extra():
    for name in (".ci/environment", "README.md"):
        (extras,) = set(re.findall(r"-e '\.\[([\w,]+)\]'", (ROOT / name).read_text()))
        assert set(extras.split(",")) == EXTRAS, name


# Built from pieces, so that this file is not what it looks for.
FORBIDDEN = {
    "a package index": re.compile(
        "|".join(["index" + "-url", "registry" + r"\+https", "pypi" + r"\.org", "python" + "hosted"])
    ),
    "a user and password in an address": re.compile(r"\w:/" + r"/[^/\s:@\"'{}]+:[^/\s@\"'{}]+@"),
    "a folder of this machine": re.compile("|".join(map(re.escape, {f"{ROOT.parent}/", f"{Path.home()}/"}))),
}


@pytest.mark.parametrize("what", FORBIDDEN)
def test_no_file_names(what):
    found = []
    for path in stored_files():
        try:
            text = path.read_text(encoding="utf-8")
        except UnicodeDecodeError:
            continue
        found += [f"{path.relative_to(ROOT)}: {match[0]}" for match in FORBIDDEN[what].finditer(text)]
    assert found == []
