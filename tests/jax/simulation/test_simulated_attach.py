"""Attaching simulated devices: what is asked for, in all its spellings, and clear words where it means nothing."""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import pathways_nb as pw
from pathways_nb.attach import simulator
from pathways_nb.compilers import packages
from pathways_nb.cost.model import CostModel

CHIPS = "Known: tpu_v2, tpu_v3, tpu_v4, tpu_v5e, tpu_v5p, tpu_v6e, tpu_v7, "
REFUSED: list[tuple[str, dict[str, Any], type[Exception], str]] = [
    ("sim", {}, pw.UsageError, 'attach("sim"): which chip? Add chip="tpu_v5p", or pw.chip(…).replace(…), or a file of'),
    ("sim", {"chip": "tpu_v9"}, pw.UsageError, "attach(chip='tpu_v9'): there is none of this name; did you mean 'tpu_v"),
    ("sim", {"chip": "tpu_v9"}, pw.UsageError, CHIPS),
    ("sim:tpu_v9", {}, pw.UsageError, "attach('sim:tpu_v9'): chip 'tpu_v9': there is none of this name; did you mean"),
    ("sim:nowhere", {}, pw.UsageError, "attach('sim:nowhere'): chip 'nowhere': there is none of this name. Known: tpu"),
    ("sim:tpu_v3", {"network": "no"}, pw.UsageError, "attach(network='no'): there is none of this name. Known: tpu_d"),
    ("sim:tpu_v3:4y32", {}, pw.UsageError, "attach('sim:tpu_v3:4y32'): write \"sim\", \"sim:CHIP\" or \"sim:CHIP:ISLANDSx"),
    ("sim:", {}, pw.UsageError, "attach('sim:'): write "),
    ("simulated", {}, pw.UsageError, "attach(kind='simulated'): choose one of 'auto', 'cpu', 'gpu', 'tpu', 'sim', 'ray'."),
    ("sim:tpu_v3", {"chip": "tpu_v4"}, pw.UsageError, "attach('sim:tpu_v3', chip='tpu_v4'): 'sim:tpu_v3' says chip='tpu_"),
    ("sim:tpu_v3:2x4", {"islands": 2}, pw.UsageError, "islands=2): 'sim:tpu_v3:2x4' says islands=2."),
    ("sim:tpu_v3:0x4", {}, pw.PlaceError, "attach(islands=0): a whole number of at least 1 is needed."),
    *(
        ("sim:tpu_v3", {name: value}, pw.PlaceError, f"attach({name}={value!r}): a whole number of at least 1 is needed.")
        for name in ("islands", "devices_per_island", "devices_per_host")
        for value in (0, -1, 2.5, True, "4", [[0, 1]])
    ),
    ("sim:tpu_v3:1x3", {}, pw.PlaceError, "devices_per_island=3: tpu_v3 has 2 devices a chip; write 2 or 4."),
    ("sim:tpu_v3:1x100000", {}, pw.PlaceError, "a pod of tpu_v3 has 32 × 32 (2048 devices); use several islands of up to"),
    ("sim:tpu_v3:1x32", {"topology": (3, 5)}, pw.PlaceError, "topology=(3, 5) has 15 chips, but devices_per_island=32: 16"),
    ("sim:tpu_v3", {"topology": (-4, 1)}, pw.PlaceError, "topology=(-4, 1): write whole numbers of at least 1, such as"),
    ("sim:tpu_v3", {"topology": 4}, pw.PlaceError, "attach(topology=4): write how many chips there are along each axis, s"),
    ("sim:tpu_v3", {"topology": "4x4"}, pw.PlaceError, "attach(topology='4x4'): write how many chips there are along each"),
    ("sim", {"chip": "tpu_v5p:4x4x4"}, pw.UsageError, "write 'tpu_v5p', and in attach '4x4x4' as topology=(4, 4, 4), one"),
    ("sim:gpu_h200_sxm", {"topology": (4, 2)}, pw.PlaceError, "gpu_h200_sxm is joined by a switch of"),
    ("sim", {"chip": 42}, pw.UsageError, "attach(chip=42): there is none of this name."),
    ("sim", {"chip": "mine.json"}, pw.UsageError, "mine.json: cannot be read"),
    ("sim:tpu_v3", {"network": "tpu-dcn"}, pw.UsageError, "attach(network='tpu-dcn'): there is none of this name; did you mean 'tpu_dc"),
    ("sim:tpu_v3", {"dcn_latency": -1}, pw.UsageError, "attach(dcn_latency=-1): a finite number of seconds of at least 0"),
    ("sim:tpu_v3", {"hbm": 0}, pw.UsageError, "attach(hbm=0): a number of bytes per device of at least 1 is needed"),
    ("sim:tpu_v3", {"noise": -0.1}, pw.UsageError, "attach(noise=-0.1): a number of at least 0 is needed, such as noise=0."),
    ("sim:tpu_v3", {"seed": 1.5}, pw.UsageError, "attach(seed=1.5): a whole number is needed."),
    ("sim:tpu_v3", {"policy": "fair"}, pw.UsageError, "policy='fair': choose one of 'fifo', 'stride', 'priority', 'shorte"),
    ("sim:tpu_v3", {"compiler": "gpu"}, pw.UsageError, "attach(compiler='gpu'): choose one of 'auto', 'own', 'cpu'."),
    ("sim:tpu_v3", {"dispatch": "serial"}, pw.UsageError, "attach(dispatch='serial'): choose one of 'parallel', 'sequential'."),
    *(
        (kind, {name: value}, pw.UsageError, f"attach({kind!r}, {name}={value!r}): {name} is for simulated devices, pw.att")
        for kind in ("cpu", "auto")
        for name, value in (
            ("chip", "tpu_v3"), ("network", "tpu_dcn"), ("topology", (4, 4)), ("devices_per_host", 4), ("noise", 0.1),
            ("seed", 3), ("values", True), ("compiler", "own"),
        )
    ),
    ("cpu", {"devices_per_host": 4}, pw.UsageError, 'pw.attach("sim", devices_per_host=…), or for hosts of a Ray cluster, pw.attach("ray", devices_per_host=…).'),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "options", "error", "text"), REFUSED)
def test_what_means_nothing_is_refused(
    controller: pw.Controller, kind: str, options: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=re.escape(text)):
        pw.attach(kind, **options)
    assert pw.attach("cpu", islands=2, devices_per_island=4) is controller, "what was attached still is"


def test_a_misspelt_field_of_a_chip_names_the_nearest() -> None:
    with pytest.raises(
        pw.UsageError, match="tpu_v3: there is no field 'hbm_bandwidth'; did you mean 'hbm_bw' or 'hbm_by"
    ):
        pw.chip("tpu_v3").replace(hbm_bandwidth=2e12)


@pytest.mark.parametrize(
    ("kind", "options", "islands"),
    [
        ("sim:tpu_v3:4x32", {}, (32,) * 4),
        ("sim:tpu_v3", {"islands": 3, "devices_per_island": 16}, (16,) * 3),
        ("sim", {"chip": "tpu_v4"}, (8,)),
        ("sim", {"chip": "gpu_h200_sxm", "islands": 2}, (8, 8)),
        ("sim:tpu_v3:1x32", {"topology": [2, 8], "devices_per_host": 8}, (32,)),
    ],
)
def test_spellings(kind: str, options: dict[str, Any], islands: tuple[int, ...]) -> None:
    with pw.attach(kind, **options) as controller:
        assert controller.islands == islands
        assert repr(controller).startswith(f"<controller sim: {controller.size_text}, parallel dispatch")
        assert pw.attach(kind, **options) is controller


def test_own_chips_and_budgets() -> None:
    mine = pw.chip("tpu_v5p").replace(hbm_bytes=1e9)
    with pw.attach("sim", chip=mine) as controller:
        assert controller.budgets == (10**9,)
        assert "of 1 GB on its fullest device" in controller.status()
    with pw.attach("sim", chip=mine, hbm=5e8) as controller:
        assert controller.budgets == (5 * 10**8,)


def test_more_islands_come_and_more_devices_than_a_pod_do_not() -> None:
    with pw.attach("sim:tpu_v3:1x32") as controller:
        assert controller.add() == 1
        assert controller.add(devices=4) == 2
        assert controller.islands == (32, 32, 4)
        with pytest.raises(pw.PlaceError, match="a pod of tpu_v3 has 32 × 32"):
            controller.add(devices=100_000)
        with pytest.raises(pw.PlaceError, match="devices"):
            controller.add(devices=0)
        assert controller.islands == (32, 32, 4)


def test_two_kinds_of_chips_are_two_controllers_and_each_prices_its_own() -> None:
    """The same program, nested: each chip bounds it by its own memory, and an island that is added is of that chip."""
    v = jax.ShapeDtypeStruct((8, 1024, 1024), jnp.float32)
    on = pw.virtual_slice(4)
    triple = pw.jit(lambda x: x * 3, on=on, in_shardings=pw.P("x"), out_shardings=pw.P("x"))
    program, found = pw.program(lambda x: triple(x)), {}
    with pw.attach("sim:tpu_v3:1x4") as slow:
        with pw.attach("sim:tpu_v5p:1x4"):
            found["tpu_v5p"] = program.run(v)
        found["tpu_v3"] = program.run(v)
        slow.add(4)
        chips = {island.topology.chip for island in slow.driver.attachment.islands}
    for name, run in found.items():
        model = CostModel.of(name)
        bytes_per_second = model.chip.device.hbm_bw * model.efficiency.bandwidth("elementwise")
        busy = run.events.of_kind("compute")
        assert busy["end"] - busy["start"] == pytest.approx(
            2 * 2 * 1024 * 1024 * 4 / bytes_per_second + model.host.device_launch
        )
    assert chips == {pw.chip("tpu_v3")}


def test_whose_compiler_is_taken_is_said_once_and_by_the_environment_where_the_user_does_not(
    monkeypatch, capsys
) -> None:
    monkeypatch.setattr(packages, "is_installed", lambda kind: False)
    monkeypatch.setattr(simulator, "_told", set())
    said = "nodes are estimated from their jaxpr, and compiled for CPU devices"
    with pw.attach("sim:tpu_v3") as controller:
        assert f"\n  {said}\n" in controller.status()
        assert controller.attach_options.as_dict()["compiler"] == "cpu", "as this environment says"
    assert capsys.readouterr().out == ""
    monkeypatch.delenv("PATHWAYS_COMPILER")
    for _ in range(2):
        with pw.attach("sim:tpu_v3"):
            pass
    assert capsys.readouterr().out == (f"{said}; the compiler of tpu_v3 says more: {packages.how_to_install('tpu')}\n")
    with pytest.raises(
        pw.UsageError, match=r'compiler="own"\): the TPU compiler, which tpu_v3 needs, is not installed'
    ):
        pw.attach("sim:tpu_v3", compiler="own")
    monkeypatch.setenv("PATHWAYS_COMPILER", "gpu")
    with pytest.raises(pw.UsageError, match=r"PATHWAYS_COMPILER=gpu: choose from 'auto', 'own', 'cpu'\."):
        pw.attach("sim:tpu_v3")
