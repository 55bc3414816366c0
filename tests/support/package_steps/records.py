"""Recorded texts of the steps of packages, and the table of the guide: ``python -m tests.support.package_steps.records``.

It installs what the steps need below ``build/``, compiles all of them with the compilers of their chips, and writes
both anew. The packages' code is on this machine only while it runs.
"""

from __future__ import annotations

import functools
import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from tempfile import TemporaryDirectory

from pathways_nb.adopt import recorded_step
from pathways_nb.adopt.asked_devices import asked_devices
from pathways_nb.adopt.predicted_step import predicted
from pathways_nb.adopt.step_answers import SavedStep
from pathways_nb.cost.launch.constants import constants_for
from tests.conftest import ROOT
from tests.support.chip_compilers import install_if_missing
from tests.support.package_steps.calls import HOME, LIBRARIES
from tests.support.package_steps.listed import BY_NAME, PINS, SOURCE, STEPS, PackageStep
from tests.support.step_records import replace_with

RECORDS = ROOT / "tests" / "recorded_steps"
GUIDE = ROOT / "docs" / "guide" / "adopt.md"
_BEGIN, _END = "<!-- steps of packages: make records -->\n", "<!-- end of steps of packages -->\n"


def install() -> None:
    """Put the pinned packages and Flax's source distribution below ``build/``, if they are not there."""
    done = HOME / "installed.txt"
    wanted = "\n".join((*PINS, SOURCE))
    if not done.exists() or done.read_text() != wanted:
        shutil.rmtree(HOME, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*pip, "install", "--no-deps", "--target", LIBRARIES, *PINS], check=True)
        subprocess.run([*pip, "download", "--no-deps", "--no-binary", ":all:", "--dest", HOME, SOURCE], check=True)
        (packed,) = HOME.glob("*.tar.gz")
        with tarfile.open(packed) as archive:
            archive.extractall(HOME, filter="data")
        done.write_text(wanted)
    sys.path.append(str(LIBRARIES))


def record(step: PackageStep, folder: Path) -> None:
    """Compile a step, and write its record."""
    with TemporaryDirectory() as name, recorded_step.recording(Path(name)), step.adopted() as adopted:
        adopted.collectives()
        (made,) = Path(name).iterdir()
        shutil.copy(made, folder / f"{step.name}.json.gz")


@functools.cache
def read(name: str) -> SavedStep:
    """What a record answers."""
    step = BY_NAME[name]
    devices, _ = asked_devices(step.chip, step.devices)
    compiled = recorded_step.unpacked((RECORDS / f"{step.name}.json.gz").read_bytes(), devices.devices)
    per_host = devices.devices_per_host
    place = compiled.place(devices.chip, [at // per_host for at in range(devices.devices)], per_host)
    known = constants_for(devices.chip, devices.network)
    made = predicted(compiled, place, known, step.mesh, (), None, step.name)
    return SavedStep(step.name, devices.chip.name, step.mesh, made)


def table() -> str:
    """The table of the guide, from the records."""
    lines = [
        "| package | file | what was needed | devices | a step | exposed | the costliest line |",
        "|---|---|---|---|---|---|---|",
    ]
    for step in STEPS:
        answers = read(step.name)
        found = answers.collectives().rows
        where = f"`{found[0].line}`" if found and found[0].line else "no line"
        worst = f"{where}: {found[0].kind}, {_time(found[0].exposed)}" if found else "none"
        least = "at least " * any("by its bytes alone" in note for note in answers.notes)
        exposed = sum(row.exposed for row in found)
        lines.append(
            f"| {step.package} | `{step.file}` | {step.how} | {answers.where} | {least}{_time(answers.seconds)} "
            f"| {_time(exposed)} | {worst} |"
        )
    return "\n".join(lines) + "\n"


def guide_with(made: str) -> str:
    """The guide with a table in its place."""
    return re.sub(f"(?s)(?<={re.escape(_BEGIN)}).*?(?={re.escape(_END)})", lambda _: made, GUIDE.read_text())


def _time(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"


if __name__ == "__main__":
    install_if_missing()
    install()
    with TemporaryDirectory() as name:
        for step in STEPS:
            record(step, Path(name))
            print(f"{step.name} recorded", flush=True)
        replace_with(Path(name), RECORDS)
    GUIDE.write_text(guide_with(table()))
