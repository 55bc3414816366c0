"""``make gpu``: run every part of ``_accelerator_parts`` and write one page with what each saw.

On a machine without accelerators the parts run on virtual devices, as a rehearsal, and the page says so.
"""

from __future__ import annotations

import argparse
import base64
import html
import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pathways_nb.bench import report
from pathways_nb.util.host_info import machine as host

_LIMIT = 1200
"""Seconds after which a part is ended."""
_LAST = 12
"""Lines of an error that the page has."""
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 1100px; margin: 2em auto; padding: 0 1em; }
:root { color-scheme: light dark; }
pre { white-space: pre-wrap; padding: .8em; border: 1px solid #8884; border-radius: 6px; font-size: 13px; }
table { border-collapse: collapse; }
td, th { padding: .2em 1em .2em 0; text-align: left; }
img { max-width: 100%; background: #fff; }
.failed { font-weight: 600; }
.note { border-left: 4px solid #888; padding-left: 1em; }
"""


class Part(NamedTuple):
    """How a part ended.

    Args:
        name: of the part.
        what: it does.
        seconds: that it took.
        text: what it saw, or the end of its error.
        pictures: captions and files of pictures.
        failed: whether it did.
    """

    name: str
    what: str
    seconds: float
    text: str
    pictures: Sequence[tuple[str, str]] = ()
    failed: bool = False


def run_part(name: str, what: str, out: Path) -> Part:
    """Run a part in a process of its own."""
    into, began = out / "part.json", time.monotonic()
    into.unlink(missing_ok=True)
    command = [sys.executable, "-m", "pathways_nb.bench._accelerator_report", "--out", str(out), "--part", name]
    # Calibrations are kept here, and not among those of the user.
    environment = os.environ | {"XDG_DATA_HOME": str(out / "data")}
    try:
        done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=_LIMIT, check=False)
        said = done.stderr
    except subprocess.TimeoutExpired:
        said = f"ended after {_LIMIT} seconds"
    seconds = time.monotonic() - began
    if into.exists():
        seen = json.loads(into.read_text(encoding="utf-8"))
        return Part(name, what, seconds, seen["text"], [tuple(one) for one in seen["pictures"]], seen["failed"])
    return Part(name, what, seconds, "\n".join(said.strip().splitlines()[-_LAST:]) or "it ended early", failed=True)


def _in_this_process(name: str, out: Path) -> None:
    """Run a part here, and write down what it saw or why it failed."""
    from pathways_nb.bench import _accelerator_parts as parts

    found: dict[str, Any] = {"pictures": [], "failed": False}
    try:
        seen = parts.PARTS[name](out)
        found |= {"text": seen.text, "pictures": seen.pictures}
    except Exception:  # the page shows it, and the others go on
        found |= {"text": "\n".join(traceback.format_exc().strip().splitlines()[-_LAST:]), "failed": True}
    (out / "part.json").write_text(json.dumps(found), encoding="utf-8")


def page(devices: str, missing: str, parts: Sequence[Part], out: Path) -> str:
    """Return the page.

    Args:
        devices: their names and numbers.
        missing: why they are virtual, and how to get others; empty if they are not.
        parts: as they ended.
        out: folder of the pictures.
    """
    note = (
        "<p class=note><b>This is a rehearsal on virtual CPU devices:</b> JAX lists no accelerator here. It shows that "
        f"the parts run; their times say nothing of a GPU or TPU. {html.escape(missing)}</p>"
        if missing
        else ""
    )
    rows = "".join(
        f"<tr><td><a href='#{at}'>{html.escape(part.name)}</a><td>{part.seconds:.1f} s"
        f"<td class={'failed' if part.failed else 'ok'}>{'failed' if part.failed else 'ran'}"
        for at, part in enumerate(parts)
    )
    facts = "".join(f"<tr><td>{html.escape(str(k))}<td>{html.escape(str(v))}" for k, v in host().items())
    body = "".join(_section(at, part, out) for at, part in enumerate(parts))
    total, failed = sum(part.seconds for part in parts), sum(part.failed for part in parts)
    return (
        f"<!doctype html><html lang=en><meta charset=utf-8><title>pathways_nb on {html.escape(devices)}</title>"
        f"<style>{_STYLE}</style><h1>pathways_nb on {html.escape(devices)}</h1>{note}"
        f"<p>Commit {html.escape(str(report.commit()))}; {len(parts)} parts in {total:.0f} s, {failed} failed.</p>"
        f"<table><tr><th>part<th>time<th>result{rows}</table>{body}"
        f"<h2>Machine</h2><table>{facts}</table></html>\n"
    )


def _section(at: int, part: Part, out: Path) -> str:
    """Return the page's section of a part."""
    shown = "".join(
        f"<p><img alt='{html.escape(caption or part.name)}' src='data:image/svg+xml;base64,"
        f"{base64.b64encode((out / file).read_bytes()).decode()}'>"
        for caption, file in part.pictures
    )
    state = " <span class=failed>failed</span>" if part.failed else ""
    return (
        f"<h2 id={at}>{html.escape(part.name)}{state}</h2><p>{html.escape(part.what)} {part.seconds:.1f} s.</p>"
        f"<pre>{html.escape(part.text)}</pre>{shown}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    """Run all parts, or one, and write the page.

    Returns:
        Exit status; 1 if a part failed.
    """
    parser = argparse.ArgumentParser(prog="make gpu", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, default=Path("build/gpu"), help="folder of the page; default: %(default)s")
    parser.add_argument("--part", help=argparse.SUPPRESS)
    asked = parser.parse_args(arguments)
    asked.out = asked.out.resolve()
    asked.out.mkdir(parents=True, exist_ok=True)
    if asked.part:
        _in_this_process(asked.part, asked.out)
        return 0
    # What devices there are is asked in another process: this one would hold them while the parts run.
    code = "from pathways_nb.bench import _accelerator_parts as p, _accelerator_report as r; r.describe(p)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    if done.returncode:
        print(done.stderr, file=sys.stderr)  # noqa: T201
        return 1
    about = json.loads(done.stdout.strip().splitlines()[-1])
    if about["missing"]:
        print(f"JAX lists no accelerator here: a rehearsal on virtual CPU devices. {about['missing']}")  # noqa: T201
    ended: list[Part] = []
    for number, (name, what) in enumerate(about["parts"].items(), 1):
        print(f"[{number}/{len(about['parts'])}] {name}", end=" … ", flush=True)  # noqa: T201
        ended.append(run_part(name, what, asked.out))
        print(f"{ended[-1].seconds:.1f} s{', failed' if ended[-1].failed else ''}", flush=True)  # noqa: T201
    written = asked.out / "report.html"
    written.write_text(page(about["devices"], about["missing"], ended, asked.out), encoding="utf-8")
    print(f"the report: {written}")  # noqa: T201
    return int(any(part.failed for part in ended))


def describe(parts: Any) -> None:
    """Print what ``main`` needs to know of the devices and the parts, as JSON."""
    from pathways_nb.runtime import device_facts  # late: ``main`` itself must start no JAX

    here = parts.machine()
    what = {name: (part.__doc__ or "").strip() for name, part in parts.PARTS.items()}
    why = dict.fromkeys(device_facts.why_none(kind).strip() for kind in ("gpu", "tpu"))
    missing = " ".join(why) if here.is_rehearsal else ""
    print(json.dumps({"devices": here.names, "missing": missing, "parts": what}))  # noqa: T201


if __name__ == "__main__":
    sys.exit(main())
