"""Accelerators as JAX lists them: what a device says of itself, and how islands are made of them."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import jax
import pytest

import pathways_nb as pw
from pathways_nb.attach import local_attach
from pathways_nb.compilers.targets import target
from pathways_nb.cost.model import CostModel
from pathways_nb.runtime import accelerators, device_facts
from pathways_nb.session.attach_options import AttachOptions
from tests.support.fake_devices import FakeDevice, cpu_devices, refuses, tpu

EIGHT = [FakeDevice(3 * number + 1) for number in range(8)]
SLICES = [FakeDevice(number, more={"slice_index": 7 - number // 4}) for number in range(8)]
HOSTS = [FakeDevice(number, more={"slice_index": None, "process_index": number % 2}) for number in range(8)]
GRID = [tpu(90 - number, x, y, 0) for number, (y, x) in enumerate((y, x) for y in range(4) for x in range(4))]


def islands(kind: Any, devices: Any, groups: Any = None, each: int | None = None) -> list[list[int]]:
    """The ids of each island's devices."""
    made = accelerators.attach_accelerators(kind, devices, groups, each)
    return [[device.id for device in island.devices] for island in made.islands]


@pytest.mark.parametrize(
    ("device", "kind"),
    [
        (FakeDevice(0, "gpu"), "gpu"),
        (FakeDevice(0, "cuda"), "gpu"),
        (FakeDevice(0, "rocm", "AMD Instinct MI300X"), "gpu"),
        (FakeDevice(0, "tpu", "TPU v4"), "tpu"),
        (FakeDevice(0, "proxy", "TPU v5 lite"), "tpu"),
        (FakeDevice(0, "proxy", ""), "tpu"),
        (FakeDevice(0, "proxy", "NVIDIA H100 80GB HBM3"), "gpu"),
        (FakeDevice(0, "pathways", "unknown"), "tpu"),
        (FakeDevice(0, "cpu", "cpu"), "cpu"),
    ],
)
def test_the_kind_is_recognised_whatever_the_platform_calls_itself(device: FakeDevice, kind: str) -> None:
    assert device_facts.kind_of(device) == kind


def test_islands_are_slices_hosts_or_equal_parts() -> None:
    ids = [device.id for device in EIGHT]
    assert islands("gpu", EIGHT) == [ids]
    assert islands("gpu", SLICES) == [[4, 5, 6, 7], [0, 1, 2, 3]] == islands("gpu", SLICES, "slice")
    assert islands("gpu", HOSTS, "host") == [[0, 2, 4, 6], [1, 3, 5, 7]]
    assert islands("gpu", EIGHT, 2) == islands("gpu", EIGHT, None, 4) == islands("gpu", EIGHT, 2, 4) == [ids[:4], ids[4:]]  # fmt: skip
    assert islands("gpu", SLICES, 4) == [[4, 5], [6, 7], [0, 1], [2, 3]]
    assert islands("gpu", SLICES, 1) == [[4, 5, 6, 7, 0, 1, 2, 3]]
    assert islands("gpu", EIGHT, [[0, 1, 2], [7]]) == [[*ids[:3]], [ids[7]]]


def test_four_asked_for_are_four_and_the_others_are_named() -> None:
    made = accelerators.attach_accelerators("gpu", EIGHT, 1, 4)
    assert [device.id for device in made.islands[0].devices] == [1, 4, 7, 10]
    assert made.note == "4 devices of 8 not attached: ids 13, 16, 19, 22."


def test_the_host_of_a_device_of_pathways_is_read_where_it_says_it() -> None:
    assert device_facts.host_of(FakeDevice(0, more={"virtual_task_index": 3, "process_index": 0})) == 3

    class Printed(FakeDevice):
        def __repr__(self) -> str:
            return "device(18,TPU_DEVICE,coords=[0,0,0,0],vtask=5,slice=0,default_mem=device,mem_spaces=3)"

    assert device_facts.host_of(Printed(18)) == 5
    assert device_facts.host_of(FakeDevice(0, more={"process_index": 2})) == 2


@pytest.mark.parametrize(
    ("devices", "groups", "each", "text"),
    [
        (EIGHT, 4, 4, 'attach("gpu", islands=4, devices_per_island=4) needs 16 devices, and JAX lists 8 '
                      "(8 × NVIDIA H100 80GB HBM3). Write devices_per_island=1 or 2 or 4 or 8, or a map, "
                      "islands=[[0, 1, …], …]."),
        (EIGHT, None, 3, 'attach("gpu", devices_per_island=3): 8 devices do not divide into islands of 3.'),
        (EIGHT, 3, None, 'attach("gpu", islands=3): 8 devices do not divide into 3 islands.'),
        (SLICES, 3, None, "8 devices in slices of 4 + 4 do not divide into 3 islands."),
        (SLICES, "host", 3, "attach(\"gpu\", islands='host', devices_per_island=3): there are 2 hosts of 4 + 4 devices."),
        (SLICES, 1, 6, "8 devices in slices of 4 + 4 have 0 such islands within a slice, not 1."),
        (EIGHT, [[0, 1], [2]], 2, "islands=[[0, 1], [2]], devices_per_island=2): the map has islands of 2 + 1 devices. "
                                  "Leave devices_per_island=2 out."),
        (EIGHT, [[0, 1], []], None, "every island needs at least one device"),
        (EIGHT, [[0, 8]], None, "8 is none of the positions 0 to 7 of the 8 devices."),
        (EIGHT, [[0, -1]], None, "-1 is none of the positions 0 to 7 of the 8 devices."),
        (EIGHT, [[0, 1], [1]], None, "device 1 is named twice, and a device is part of one island."),
    ],
)  # fmt: skip
def test_numbers_that_do_not_fit_are_refused_with_both(devices: Any, groups: Any, each: Any, text: str) -> None:
    with pytest.raises(pw.PlaceError) as error:
        accelerators.attach_accelerators("gpu", devices, groups, each)
    assert text in str(error.value)


def test_islands_of_a_tpu_are_boxes_of_its_grid() -> None:
    made = accelerators.attach_accelerators("tpu", GRID, None, 4)
    corners = [sorted(tuple(device.coords[:2]) for device in island.devices) for island in made.islands]
    assert corners == [[(x + a, y + b) for a in (0, 1) for b in (0, 1)] for x in (0, 2) for y in (0, 2)]
    assert [island.about for island in made.islands] == [", a 2 × 2 grid of tpu_v5e"] * 4
    (whole,) = accelerators.attach_accelerators("tpu", GRID, None).islands
    assert whole.about == ", a 4 × 4 grid of tpu_v5e"
    with pytest.raises(pw.PlaceError) as error:
        accelerators.attach_accelerators("tpu", GRID, 1, 6)
    assert str(error.value) == (
        'attach("tpu", islands=1, devices_per_island=6): 16 devices have 0 such boxes of the grid, not 1. Aligned '
        "boxes of a 4 × 4 grid of tpu_v5e have 1, 2, 4, 8, 16 devices: write devices_per_island=8, or a map, islands=[[0, 1, …], …]."
    )


def test_an_island_of_several_slices_has_a_grid_for_each() -> None:
    """Hosts are numbered in each slice by themselves; a box is within a slice or made of whole ones."""
    two = [
        tpu(10 * number + at, x, y, 0, slice_index=number, virtual_task_index=y // 2)
        for number in (4, 2)
        for at, (x, y) in enumerate((x, y) for x in range(2) for y in range(4))
    ]
    (island,) = accelerators.attach_accelerators("tpu", two, 1).islands
    assert island.about == ", 2 slices, each a 2 × 4 grid of tpu_v5e"
    assert island.grid is not None
    assert island.grid.host == (1, 2, 2, 1)
    assert {size: len(boxes) for size, boxes in island.grid.boxes.items()} == {1: 16, 2: 8, 4: 4, 8: 2, 16: 1}
    assert [device.id // 10 for device in island.devices] == [2] * 8 + [4] * 8
    (mapped,) = accelerators.attach_accelerators("tpu", two, [[0, 8, 1, 9]]).islands
    assert mapped.grid is not None
    assert list(mapped.grid.boxes) == [1, 4], "a box is a run of the user's own order"


def test_a_users_map_of_a_tpu_keeps_its_order() -> None:
    (island,) = accelerators.attach_accelerators("tpu", GRID, [[5, 4, 1, 0]]).islands
    assert [device.id for device in island.devices] == [85, 86, 89, 90]
    assert island.grid is not None
    assert island.grid.arranged(0, 4, (4,)) == [0, 1, 2, 3]
    assert 4 in island.grid.boxes


@pytest.mark.parametrize(
    "devices",
    [
        [FakeDevice(n, "tpu", "TPU v4") for n in range(4)],  # no coords
        [tpu(n, 0, 0, 0) for n in range(4)],  # all the same
        [tpu(0, 0, 0, 0), tpu(1, 0, 1, 0), FakeDevice(2, "tpu", "TPU v5 lite")],
    ],
)
def test_tpus_whose_coordinates_tell_nothing_have_no_grid(devices: Any) -> None:
    (island,) = accelerators.attach_accelerators("tpu", devices, None).islands
    assert island.grid is None


def test_two_cores_of_a_chip_are_neighbours() -> None:
    chips = [(x, y) for x in range(2) for y in range(2)]
    cores = [tpu(2 * at + core, x, y, 0, core_on_chip=core) for at, (x, y) in enumerate(chips) for core in (0, 1)]
    (island,) = accelerators.attach_accelerators("tpu", cores, None).islands
    assert island.grid is not None
    assert island.grid.sides == (2, 2, 1, 2)


def test_on_pathways_a_box_keeps_hosts_whole() -> None:
    # Two hosts of 2 × 2 chips in a 4 × 2 slice: four coordinates, and the host in another attribute.
    where = [(x, y) for x in range(4) for y in range(2)]
    devices = [
        FakeDevice(18 + at, "proxy", "TPU v5 lite", more={"coords": [x, y, 0, 0], "virtual_task_index": x // 2})
        for at, (x, y) in enumerate(where)
    ]
    (island,) = accelerators.attach_accelerators("tpu", devices, None).islands
    assert island.grid is not None
    assert island.grid.host == (2, 2, 1, 1)
    assert list(island.grid.boxes) == [1, 2, 4, 8]


# ---- memory


@pytest.mark.parametrize(
    ("device", "size"),
    [
        (FakeDevice(0, stats=lambda: {"bytes_limit": 60, "bytes_in_use": 1}), 60),
        (FakeDevice(0), 80_000_000_000),
        (FakeDevice(0, stats=refuses), 80_000_000_000),
        (FakeDevice(0, stats=lambda: {}), 80_000_000_000),
        (FakeDevice(0, stats=lambda: {"bytes_limit": -5}), 80_000_000_000),
        (FakeDevice(0, stats=lambda: {"bytes_in_use": 1}), 80_000_000_000),
        (FakeDevice(0, "proxy", "TPU v5 lite", refuses), 16_000_000_000),
        (FakeDevice(0, "tpu", "TPU v3"), 34359738368 // 2),  # a device is a core
        (FakeDevice(0, "rocm", "AMD Instinct MI300X"), 0),
    ],
)
def test_the_memory_is_what_a_device_reports_else_what_the_table_of_chips_has(device: FakeDevice, size: int) -> None:
    assert device_facts.capacity_of([device]) == size


KINDS = {
    "NVIDIA H100 80GB HBM3": "gpu_h100_sxm", "NVIDIA H200": "gpu_h200_sxm", "NVIDIA A100-SXM4-80GB": "gpu_a100_80",
    "TPU v3": "tpu_v3", "TPU v5 lite": "tpu_v5e", "TPU v5": "tpu_v5p", "TPU v6 lite": "tpu_v6e", "TPU7x": "tpu_v7",
}  # fmt: skip
"""What real devices call themselves (that of the H200 is recorded in ``datasets``), and their chips."""


@pytest.mark.parametrize(("kind", "name"), KINDS.items())
def test_devices_here_and_those_that_are_only_compiled_for_are_in_one_table(kind: str, name: str) -> None:
    """Devices to compile for have no ``memory_stats``: their sizes are the table's, too."""
    chip = pw.chip(name)
    device = FakeDevice(0, "tpu" if name.startswith("tpu") else "gpu", kind)
    compiled_for = target(CostModel.of(chip).topology(8))
    assert device_facts.chip_name([device]) == name
    assert device_facts.capacity_of([device]) == int(compiled_for.memory) == int(chip.device.hbm_bytes)


def test_a_line_says_where_a_size_is_from() -> None:
    device = FakeDevice(0, "proxy", "TPU v5 lite", refuses)
    assert device_facts.memory_note([device], 16_000_000_000) == (
        "The devices do not report their memory: counted are 16 GB each, by the table of chips (tpu_v5e), less the "
        "arrays of this process. hbm= sets another size."
    )
    told = FakeDevice(0, stats=lambda: {"bytes_limit": 60})
    assert device_facts.memory_note([told], 60) == ""


def test_no_limit_is_told_where_nobody_knows_one(recwarn: pytest.WarningsRecorder) -> None:
    device = FakeDevice(0, "METAL", "Apple M3")
    assert device_facts.capacity_of([device]) == 0
    assert device_facts.memory_note([device], 0) == (
        "The devices do not report their memory, and the table of chips has no 'Apple M3': no limit is kept. hbm= sets "
        "one."
    )
    assert not recwarn
    refusing = FakeDevice(0, "METAL", "Apple M3", refuses)
    with pytest.warns(RuntimeWarning, match="The memory of the attached devices cannot be read"):
        device_facts.capacity_of([refusing])
    assert device_facts.memory_note([refusing], 0) == "", "the warning has told it"


# ---- what JAX lists


def test_several_processes_are_refused_with_what_to_use(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jax, "devices", lambda: EIGHT)
    monkeypatch.setattr(jax, "process_count", lambda: 4)
    with pytest.raises(pw.UsageError) as error:
        pw.attach("gpu")
    assert str(error.value) == (
        "attach: this is process 0 of 4 (jax.process_count()), and a controller has all its devices in one process. "
        'Start one process without jax.distributed.initialize(): on a cluster, pw.attach("ray", islands=4, …) starts a '
        "process on each host by itself; on Pathways on Cloud (JAX_PLATFORMS=proxy) one process has the devices of all "
        "hosts."
    )


def test_pathways_utilities_are_initialized_once_if_they_are_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    calls: list[str] = []
    fake = SimpleNamespace(
        initialize=lambda: calls.append("initialize"), __spec__=SimpleNamespace(name="pathwaysutils")
    )
    monkeypatch.setitem(sys.modules, "pathwaysutils", fake)  # type: ignore[arg-type]
    device_facts.start_pathways()
    assert calls == []  # JAX is told to use the CPU
    monkeypatch.setattr(device_facts, "uses_proxy", lambda: True)
    for _ in range(2):
        device_facts.start_pathways()
    assert calls == ["initialize"]
    said = capsys.readouterr().err
    assert said.count("asking Pathways' proxy at JAX_BACKEND_TARGET for its devices; where nobody answers") == 1


def test_a_backend_that_does_not_start_is_told_with_the_fix(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails() -> None:
        raise RuntimeError("Unable to initialize backend 'proxy': not in the list of known backends: ['cpu'].\nmore")

    monkeypatch.setattr(jax, "devices", fails)
    with pytest.raises(pw.UsageError, match=r"JAX cannot start a backend \(Unable to .*\['cpu'\].\)\. Unset JAX_PLATF"):
        pw.attach("auto")
    monkeypatch.setattr(device_facts, "uses_proxy", lambda: True)
    with pytest.raises(pw.UsageError, match=r"is not installed .*pip install 'pathways_nb\[pathways\]'"):
        pw.attach("tpu")
    monkeypatch.setattr(device_facts, "start_pathways", lambda: None)
    monkeypatch.setattr(device_facts.importlib.util, "find_spec", lambda name: name)
    monkeypatch.setenv("JAX_BACKEND_TARGET", "grpc://nowhere:1")
    with pytest.raises(pw.UsageError, match=r"does not answer at JAX_BACKEND_TARGET='grpc://nowhere:1'.*grpc://127"):
        pw.attach("tpu")


def test_an_error_says_what_is_missing_for_a_kind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_facts, "_platforms", lambda: "cpu")
    text = " JAX_PLATFORMS=cpu keeps JAX from looking for one: unset it, and start again."
    assert device_facts.why_none("tpu") == device_facts.why_none("gpu") == text
    monkeypatch.setattr(device_facts, "_platforms", lambda: "")
    assert device_facts.why_none("tpu") == " For TPUs of this machine: pip install 'pathways_nb[tpu]'."
    monkeypatch.setattr(device_facts.importlib.util, "find_spec", lambda name: name)
    assert device_facts.why_none("gpu") == (
        " jax_cuda13_plugin is installed, so JAX could not start it (a driver that is older than CUDA needs, say): "
        "JAX_PLATFORMS=cuda python -c 'import jax; jax.devices()' tells why."
    )


# ---- options


def options(**more: Any) -> AttachOptions:
    asked = {"islands": None, "devices_per_island": None} | more
    return AttachOptions("gpu", **asked, dispatch="parallel", pin=True)


def test_a_map_may_name_the_devices_themselves(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_facts, "found_devices", lambda: ("gpu", EIGHT))
    spelled = local_attach.spelled_out(options(islands=[EIGHT[:2], [EIGHT[7]]]))
    assert spelled.islands == ((0, 1), (7,))
    assert spelled == local_attach.spelled_out(options(islands=[[0, 1], [7]]))
    with pytest.raises(pw.PlaceError, match=r"FakeDevice\(id=99, .* is none of the 8 devices that JAX lists"):
        local_attach.spelled_out(options(islands=[[FakeDevice(99)]]))
    for wrong in ("slices", [["a"]], [[True, False]], [[0.0]], 1.5):
        with pytest.raises(pw.PlaceError, match=r"attach\(islands="):
            local_attach.spelled_out(options(islands=wrong))
    for count in (0, True, "4", [4]):
        with pytest.raises(pw.PlaceError, match=r"attach\(devices_per_island=.*a whole number of at least 1"):
            local_attach.spelled_out(options(devices_per_island=count))


def test_a_work_is_measured_on_a_device_of_the_attachment(controller: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pathways' devices may call themselves "tpu", and ``jax.devices("tpu")`` knows none."""
    work_module = sys.modules["pathways_nb.program.timed_work"]
    mine = cpu_devices(2)
    monkeypatch.setattr(device_facts, "found_devices", lambda: ("tpu", mine))
    measured: list[Any] = []
    monkeypatch.setattr(work_module, "_measure", lambda device: measured.append(device) or 1e-6)
    monkeypatch.setattr(work_module, "_measured", {})
    monkeypatch.setattr(work_module, "_of_cpu", lambda platform: None)
    with pw.attach("tpu"):
        pw.work(1e-4, on=pw.virtual_slice(2))().wait()
    assert measured == mine[:1]


PROXY = """
    import importlib.machinery, sys, types

    # What brings the backend of Pathways on Cloud, with CPU devices behind it.
    utilities = types.ModuleType("pathwaysutils")
    utilities.__spec__ = importlib.machinery.ModuleSpec("pathwaysutils", None)

    def initialize():
        from jax.extend import backend
        from jaxlib import xla_client
        print("initialized")
        backend.register_backend_factory("proxy", lambda: xla_client.make_cpu_client(num_devices=8), priority=-1)

    utilities.initialize = initialize
    sys.modules["pathwaysutils"] = utilities

    import jax, jax.numpy as jnp, numpy as np, pathways_nb as pw
    from pathways_nb.cost.hlo.quick_compiling import cpu_devices
    controller = pw.attach("auto", devices_per_island=4)
    assert pw.attach("tpu", devices_per_island=4) is controller
    left, right = pw.virtual_slice(4, island=0), pw.virtual_slice(4, island=1)
    one = pw.jit(lambda v: jnp.sin(v) * 3, on=left, in_shardings=pw.P("x"))
    two = pw.jit(lambda v: (v * v).sum(), on=right, in_shardings=pw.P("x"))
    v = np.arange(8, dtype=np.float32)
    loss, grads = pw.get(pw.program(jax.value_and_grad(lambda v: two(one(v))))(v))
    np.testing.assert_allclose(grads, 18 * np.sin(v) * np.cos(v), rtol=1e-5)
    assert pw.work(1e-3, on=right)().result() == 1
    try:
        jax.devices("cpu")
        raise SystemExit("JAX has CPU devices, too")
    except RuntimeError:
        assert len(cpu_devices(4)) >= 4  # to compile for
    print(repr(controller))
"""


def test_the_same_notebook_attaches_to_the_proxy(fresh_python) -> None:
    done = fresh_python(PROXY, JAX_PLATFORMS="proxy")
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.splitlines() == [
        "initialized",
        'attached tpu: 2 islands × 4 devices; for virtual CPU devices: pw.attach("cpu")',
        "<controller tpu: 2 islands × 4 devices, parallel dispatch>",
    ]
