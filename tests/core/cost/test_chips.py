"""Chips and networks: what the table holds, where it comes from, what may be changed and what is refused."""

from __future__ import annotations

import json
import pickle
import re
from dataclasses import FrozenInstanceError

import jax.numpy as jnp
import numpy as np
import pytest

import pathways_nb as pw
from pathways_datasets import hardware
from pathways_nb.cost.hardware.parameters import KINDS, Origin, rules, say
from pathways_nb.cost.hardware.tables import names

CHIPS = [pw.chip(name) for name in names("chips")]
FIELDS = ", ".join(rules(pw.Chip))


def said(wrong, *args, **kwargs) -> str:
    with pytest.raises(pw.UsageError) as error:
        wrong(*args, **kwargs)
    return str(error.value)


@pytest.mark.parametrize("chip", [*CHIPS, *map(pw.network, names("networks"))], ids=lambda chip: chip.name)
def test_every_value_carries_an_origin_with_a_source(chip) -> None:
    for field in rules(type(chip)):
        origin = chip.origin(field)
        if getattr(chip, field) is not None:
            assert origin.kind in KINDS, field
            assert origin.kind != "yours"
            assert len(origin.source) >= 5, field


def test_the_table_holds_nothing_else() -> None:
    assert set(hardware()) == {"about", "chips", "networks"}
    for entries in hardware()["chips"].values():
        assert set(entries) <= set(rules(pw.Chip))
        assert all(len(entry) == 3 for entry in entries.values())


@pytest.mark.parametrize(
    ("name", "device", "rate", "memory", "bandwidth"),
    [
        ("tpu_v2", 2, 23e12, 8e9, 358e9),
        ("tpu_v3", 2, 61.5e12, 16 * 2**30, 450e9),
        ("tpu_v4", 1, 275e12, 32 * 2**30, 1.2e12),
        ("tpu_v7", 2, 1153.5e12, 96 * 2**30, 3.69e12),
        ("gpu_h100_sxm", 1, 989.4e12, 80e9, 3.35e12),
    ],
)
def test_a_device_is_what_jax_lists(name, device, rate, memory, bandwidth) -> None:
    chip = pw.chip(name)
    assert chip.devices_per_chip == device
    assert chip.device.flops("bf16") == pytest.approx(rate)
    assert chip.device.hbm_bytes == pytest.approx(memory)
    assert chip.device.hbm_bw == pytest.approx(bandwidth)
    assert chip.device.pcie_bw * device == chip.pcie_bw
    assert chip.device.nic_bw * chip.devices_per_host == pytest.approx(chip.nic_bw)


@pytest.mark.parametrize("chip", CHIPS, ids=lambda chip: chip.name)
def test_figures_fit_together(chip) -> None:
    """Orders of magnitude that a slip of a unit would break."""
    rate = chip.flops("bf16") if chip.bf16_flops else chip.flops("fp16")
    assert 40e12 < rate < 3e15
    assert 50 < rate / chip.hbm_bw < 700, "FLOP per byte"
    assert 8e-3 < chip.hbm_bytes / chip.hbm_bw < 60e-3, "seconds to read all memory"
    assert chip.hbm_bw > chip.links * chip.link_bw > chip.pcie_bw
    assert chip.links * chip.link_bw > chip.nic_bw / chip.chips_per_host


def test_published_pairs_agree() -> None:
    """Figures of the data sheets that say one thing in two ways."""
    both_ways = {"tpu_v5e": 400e9, "tpu_v5p": 1200e9, "tpu_v6e": 800e9, "tpu_v7": 1200e9,
                 "gpu_v100_sxm2": 300e9, "gpu_a100_80": 600e9, "gpu_h100_sxm": 900e9, "gpu_b200": 1800e9}  # fmt: skip
    for name, published in both_ways.items():
        chip = pw.chip(name)
        assert 2 * chip.links * chip.link_bw == pytest.approx(published), name
    pods = {"tpu_v2": 256, "tpu_v3": 1024, "tpu_v4": 4096, "tpu_v5e": 256, "tpu_v5p": 8960, "tpu_v7": 9216}
    for name, chips in pods.items():
        assert np.prod(pw.chip(name).pod) == chips, name
    nvl72 = pw.chip("gpu_gb200_nvl72")
    assert nvl72.nic_bw * nvl72.pod[0] / nvl72.chips_per_host == pytest.approx(3.6e12)


@pytest.mark.parametrize("dtype", ["bf16", "bfloat16", jnp.bfloat16, jnp.dtype("bfloat16"), np.dtype(jnp.bfloat16)])
def test_types_are_named_in_any_way(dtype) -> None:
    assert pw.chip("gpu_a100_80").flops(dtype) == 312e12


def test_a_type_without_a_unit_counts_as_a_wider_one() -> None:
    v3, v100, h100 = (pw.chip(name) for name in ("tpu_v3", "gpu_v100_sxm2", "gpu_h100_sxm"))
    assert v3.flops("float32") == v3.flops("int8") == v3.flops(jnp.float8_e4m3fn) == v3.bf16_flops
    assert v100.flops("bfloat16") == v100.fp32_flops
    assert h100.flops(jnp.float8_e4m3fn) == h100.fp8_flops == pytest.approx(2 * h100.bf16_flops, rel=1e-3)
    assert h100.flops("float32") < h100.flops("bfloat16")
    assert said(v3.flops, "float64") == "tpu_v3: no rate is known for 'float64'; the chip has one for bf16."


def test_a_chip_is_immutable_and_replace_gives_another() -> None:
    v5p = pw.chip("tpu_v5p")
    mine = v5p.replace(hbm_bw=2e12)
    assert (v5p.hbm_bw, mine.hbm_bw) == (2765e9, 2e12)
    assert mine.name == "tpu_v5p, changed: hbm_bw"
    assert mine.origin("hbm_bw") == Origin("yours")
    assert mine.origin("hbm_bytes") == v5p.origin("hbm_bytes")
    assert mine.replace(bf16_flops=1e15).name == "tpu_v5p, changed: bf16_flops, hbm_bw"
    named = mine.replace(name="half", pod=[4, 4, 4])
    assert (named.name, named.pod, named.replace(links=2).name) == ("half", (4, 4, 4), "half, changed: links")
    with pytest.raises(FrozenInstanceError):
        v5p.hbm_bw = 1.0  # type: ignore[misc]


def test_equal_values_are_equal_chips_also_after_pickling() -> None:
    mine = pw.chip("tpu_v3").replace(hbm_bw=2e12)
    again = pickle.loads(pickle.dumps(mine))
    assert again == mine == pw.chip("tpu_v3").replace(hbm_bw=2e12) != pw.chip("tpu_v3")
    assert hash(again) == hash(mine)
    assert again.origin("hbm_bw") == Origin("yours")
    assert pw.chip(mine) is mine


def test_an_unknown_chip_names_the_nearest_and_all() -> None:
    known = f"Known: {', '.join(names('chips'))}; or a path to .json."
    assert said(pw.chip, "h100") == f"chip('h100'): there is none of this name; did you mean 'gpu_h100_sxm'? {known}"
    assert "'tpu_v5e' or 'tpu_v5p'" in said(pw.chip, "tpu_v5")
    assert said(pw.chip, 3) == f"chip(3): there is none of this name. {known}"
    assert "did you mean 'tpu_dcn'?" in said(pw.network, "dcn")


def test_a_misspelt_field_names_the_nearest_and_all() -> None:
    v3 = pw.chip("tpu_v3")
    assert said(v3.replace, hbm_bandwith=1e12) == (
        f"tpu_v3: there is no field 'hbm_bandwith'; did you mean 'hbm_bw' or 'hbm_bytes'? Fields: {FIELDS}."
    )
    assert said(v3.replace, xyz=1) == f"tpu_v3: there is no field 'xyz'. Fields: {FIELDS}."
    assert said(v3.origin, "hbm") == (
        f"tpu_v3: there is no field 'hbm'; did you mean 'hbm_bytes' or 'hbm_bw'? Fields: {FIELDS}."
    )


RATE = "write a finite number above 0, in bytes/s."
COUNT = "write a whole number of at least 1."


@pytest.mark.parametrize(
    ("field", "value", "wanted"),
    [
        *[("hbm_bw", wrong, RATE) for wrong in (0, -1.0, float("nan"), float("inf"), True, "2e12", None, [1.0])],
        ("bf16_flops", -1, "write a finite number above 0, in FLOP/s, or None."),
        *[("links", wrong, COUNT) for wrong in (0, -4, 2.0, True, "4")],
        ("link_efficiency", 1.1, "write a number above 0 and at most 1."),
        ("hop_latency", -1e-6, "write a finite number of seconds, 0 or more."),
        ("interconnect", "ring", "write one of 'torus', 'switch', 'mesh'."),
        ("pod", (16, 0), "write one or more whole numbers of at least 1, such as (16, 16)."),
        ("wrap_at", 0, "write a whole number of at least 1, or None."),
        ("name", 3, "write a text that is not empty."),
    ],
)
def test_values_that_no_hardware_has_are_refused(field, value, wanted) -> None:
    shown = tuple(value) if isinstance(value, list) else value
    assert said(pw.chip("tpu_v4").replace, **{field: value}) == f"tpu_v4: {field} is {shown!r}; {wanted}"


def test_a_chip_reads_as_a_table() -> None:
    mine = pw.chip("tpu_v3").replace(hbm_bw=2e12)
    lines = repr(mine).splitlines()
    assert lines[0] == "<chip tpu_v3, changed: hbm_bw>"
    assert re.search(r"^  hbm_bytes +34\.4 GB  datasheet: Google Cloud", lines[2])
    assert re.search(r"^  hbm_bw +2 TB/s  yours$", lines[3])
    assert re.search(r"^  pod +32 × 32  datasheet", lines[7])
    page = mine.replace(name="<mine>")._repr_html_()
    assert "&lt;mine&gt;" in page
    assert page.count("<tr>") == len(mine.rows()) + 1
    assert '<td style="text-align:left">2 TB/s</td>' in page


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [(9e11, "bytes/s", "900 GB/s"), (1e-6, "s", "1 µs"), (3.6e-5, "s", "36 µs"), (0.0, "s", "0 s"),
     (1.979e15, "FLOP/s", "1.98 PFLOP/s"), (0.9, "", "0.9"), (4, "", "4"), ((4, 8), "", "4 × 8")],
)  # fmt: skip
def test_values_are_said_with_their_units(value, unit, text) -> None:
    assert say(value, unit) == text


def test_a_chip_from_a_file(tmp_path) -> None:
    path = tmp_path / "mine.json"
    path.write_text(
        json.dumps({"base": "tpu_v5p", "hbm_bw": 2e12, "link_bw": [9e10, "fitted on July's runs", "notes"]})
    )
    mine = pw.chip(path)
    assert mine == pw.chip(str(path))
    assert (mine.name, mine.hbm_bw, mine.links) == ("mine", 2e12, 6)
    assert mine.origin("hbm_bw") == Origin("yours")
    assert mine.origin("link_bw") == Origin("fitted on July's runs", "notes")
    assert mine.origin("links") == pw.chip("tpu_v5p").origin("links")
    path.write_text(json.dumps({"name": "all of it", **hardware()["chips"]["gpu_b200"]}))
    assert pw.chip(path).replace(name="gpu_b200") == pw.chip("gpu_b200")


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ('{"base": "tpu_v5p", "hbm_bw": -1}', f"hbm_bw is -1; {RATE}"),
        ('{"base": "tpu_v5p", "hbm_bw": NaN}', f"hbm_bw is nan; {RATE}"),
        ('{"base": "tpu_v5p", "hbm": 1}', f"there is no field 'hbm'; did you mean 'hbm_bytes' or 'hbm_bw'? Fields: {FIELDS}."),
        ('{"base": "tpu_v5p", "hbm_bw": [1e12, "guess", ""]}', "hbm_bw: 'guess' is no kind of origin; write one of "
         "'datasheet', 'derived', 'literature', 'recalled', 'assumed', 'measured here', 'yours' or 'fitted on …'."),
        ('{"base": "tpu_v5"}', "base: chip('tpu_v5'): there is none of this name; did you mean 'tpu_v5e' or 'tpu_v5p'"),
        ('{"base": 5}', "base is 5; write a text."),
        ('{"hbm_bw": 1e12', "not JSON, line 1 column 16: Expecting ',' delimiter."),
        ("[1, 2]", 'holds a list; write one object, {"base": …, field: value}.'),
        ('{"hbm_bw": 1e12}', "lacks hbm_bytes, devices_per_chip, chips_per_host, interconnect, pod, links, link_bw, "
         "link_efficiency, hop_latency, start_latency, nic_bw, nic_rtt, pcie_bw, pcie_latency. "
         'Write them, or "base": NAME to take them from there.'),
    ],
)  # fmt: skip
def test_errors_of_a_file_name_file_field_and_value(tmp_path, written, message) -> None:
    path = tmp_path / "mine.json"
    path.write_text(written)
    assert said(pw.chip, path).startswith(f"{path}: {message}")


def test_a_file_that_is_not_there(tmp_path) -> None:
    assert said(pw.chip, tmp_path / "no.json").startswith(f"{tmp_path / 'no.json'}: cannot be read (")


def test_networks() -> None:
    slow = pw.network("tpu_dcn").replace(rtt=1e-3)
    assert (slow.name, slow.latency, slow.host_bw_effective) == ("tpu_dcn, changed: rtt", 5e-4, 25e9)
    assert slow.origin("rtt") == Origin("yours")
    assert said(slow.replace, host_bw=0) == f"tpu_dcn, changed: rtt: host_bw is 0; {RATE}"
    own = pw.chip("tpu_v3").replace(nic_bw=1e9).network
    assert (own.name, own.host_bw) == ("NICs of tpu_v3, changed: nic_bw", 1e9)
    assert own.origin("host_bw") == Origin("yours")
