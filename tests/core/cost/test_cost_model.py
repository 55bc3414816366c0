"""The one cost model against closed forms written out by hand, and groups of a mesh against devices counted."""

from __future__ import annotations

import math
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st

import pathways_nb as pw
from pathways_nb.cost.collectives.collective import Collective
from pathways_nb.cost.collectives.mesh_axes import STRIDED, UNKNOWN, AxisGroup, group_of
from pathways_nb.cost.collectives.pricing import collective
from pathways_nb.cost.hardware.host_costs import HOST
from pathways_nb.cost.jaxpr.node_work import Amount, Work
from pathways_nb.cost.model import CostModel, Efficiency

V3, V5E, H100 = CostModel.of("tpu_v3"), CostModel.of("tpu_v5e"), CostModel.of("gpu_h100_sxm")
KINDS = ("elementwise", "reduction", "movement", "sort", "random", "other")
SIZES = st.floats(0, 1e15)


def seconds(model: CostModel, *amounts: Amount, devices: int = 8) -> float:
    return model.node(Work(amounts), model.topology(devices), {"x": devices}).seconds - model.host.device_launch


@given(SIZES, SIZES, SIZES)
def test_a_product_takes_the_longer_of_its_operations_and_its_bytes(flops, read, written) -> None:
    found = seconds(V3, Amount("matmul", "bfloat16", flops, read, written))
    assert found == pytest.approx(max(flops / (61.5e12 * 0.7), (read + written) / (450e9 * 0.8)), abs=1e-15)


@given(st.sampled_from(KINDS), SIZES, SIZES)
def test_other_classes_take_their_bytes_where_no_rate_is_known(kind, flops, read) -> None:
    share = getattr(V5E.efficiency, kind)
    assert seconds(V5E, Amount(kind, "", flops, read)) == pytest.approx(read / (819e9 * share), abs=1e-15)


def test_a_class_with_a_rate_of_its_own_takes_the_longer_too() -> None:
    model = CostModel.of("tpu_v5e", efficiency=V5E.efficiency.replace(sort_flops=1e9))
    assert seconds(model, Amount("sort", "", 1e9, 8.0)) == pytest.approx(1.0)
    assert "sort by FLOP/s" in model.node(Work((Amount("sort", "", 1e9),)), model.topology(1), {"x": 1}).formula


@given(st.lists(st.tuples(st.sampled_from(KINDS), SIZES), max_size=5))
def test_classes_add_up(amounts) -> None:
    listed = [Amount(kind, "", 0.0, read) for kind, read in amounts]
    total = math.fsum(seconds(V5E, one) for one in listed)
    assert seconds(V5E, *listed) == pytest.approx(total, rel=1e-12, abs=1e-12)


def test_what_no_data_sheet_tells_counts_as_float32_and_says_so() -> None:
    found = V5E.node(Work((Amount("matmul", "float64", 1e12),)), V5E.topology(1), {"x": 1})
    assert found.compute == pytest.approx(1e12 / (V5E.chip.flops("fp32") * 0.7))
    assert found.formula == "matmul by FLOP/s of float32, for float64"


@given(st.sampled_from([V3, V5E, H100]), st.integers(1, 10**9), st.integers(1, 5))
def test_collectives_of_a_node_are_those_of_the_closed_forms(model, bytes, count) -> None:
    island = model.topology(8)
    for kind, whole in [("all-reduce", 1), ("all-gather", 1), ("reduce-scatter", 1), ("broadcast", 1),
                        ("all-to-all", 8), ("permute", 8)]:  # fmt: skip
        work = Work((), (Collective(kind, bytes, ("x",), 8, count, "compiled"),))
        found = model.node(work, island, {"x": 8})
        closed = collective(kind.replace("-", "_"), bytes * whole, island)
        assert found.collective == pytest.approx(count * closed.seconds)
        assert found.seconds == pytest.approx(found.launch + found.compute + found.collective)
        assert found.origin == "roofline, compiled"
        assert found.formula == f"{count} × {kind} of 8: {closed.formula}"


def arrays(kind: str, N: int, part: int) -> tuple[int, int]:
    """Bytes that one device begins with (ends with, for an all-gather), and of all arrays as one logical one."""
    held = {"all-to-all": part, "permute": part}.get(kind, N * part)
    logical = N * part  # every device's part side by side; or the one array that all have
    return held, logical


@given(st.sampled_from(["all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all", "permute"]),
       st.integers(2, 64), st.integers(1, 10**6))  # fmt: skip
def test_bytes_on_a_device_become_those_of_the_whole_array(kind, N, part) -> None:
    held, logical = arrays(kind, N, part)
    assert Collective(kind, held, ("x",), N).whole_bytes == logical


def test_a_share_of_the_bandwidth_is_as_if_links_and_nics_were_slower() -> None:
    half = CostModel.of("gpu_h100_sxm", efficiency=V5E.efficiency.replace(all_gather=0.5))
    work = Work((), (Collective("all-gather", 10**9, ("x",), 16),))
    full, slower = (m.node(work, m.topology(16), {"x": 16}) for m in (H100, half))
    closed = collective("all_gather", 1e9, H100.topology(16))
    assert slower.collective - full.collective == pytest.approx(closed.bandwidth)


@given(st.integers(1, 16))
def test_devices_that_share_cores_take_turns(devices) -> None:
    """Two at a time: beyond that, each takes its share."""
    crowded = CostModel.of("tpu_v5e", efficiency=V5E.efficiency.replace(at_once=2.0))
    work = Work((Amount("elementwise", "", 0.0, 1e9),))
    alone, among = (m.node(work, m.topology(16), {"x": devices}) for m in (V5E, crowded))
    assert among.compute == pytest.approx(alone.compute * max(1, devices / 2))
    assert among.launch == pytest.approx(alone.launch * max(1, devices / 2))


def test_answers_are_kept_and_models_can_be_sent() -> None:
    work, model = Work((Amount("matmul", "bfloat16", 1e9),)), CostModel.of("tpu_v3")
    island = model.topology(8)
    assert model.topology(8) is island
    assert model.node(work, island, {"x": 8}) is model.node(work, island, {"x": 8})
    assert model.transfer(8, "host", island, 0, 8) is model.transfer(8, "host", island, 0, 8)
    again = pickle.loads(pickle.dumps(model))
    assert (again, hash(again)) == (model, hash(model))
    assert again.node(work, again.topology(8), {"x": 8}) == model.node(work, island, {"x": 8})
    assert again.host.origin("per_host").kind == "derived"


def test_every_usual_figure_says_where_it_is_from() -> None:
    for parameters in (V3.host, V3.efficiency):
        assert [row for row in parameters.rows() if row[2] == "not given"] == []
    assert HOST.per_host == pytest.approx((35e-3 - 2.3e-3) / (512 - 16), rel=1e-3)


@pytest.mark.parametrize(
    ("route", "source", "target", "wanted"),
    [
        ("local", 4, 4, 0.0),
        ("host", 0, 8, 1e-5 + 1e9 / 4 / 15e9),  # four chips, each over its own PCIe
        ("DCN", 8, 8, 36e-6 + 1e9 / 25e9),
        ("DCN", 16, 8, 36e-6 + 1e9 / 25e9),  # the side with fewer hosts decides
        ("DCN", 16, 16, 36e-6 + 1e9 / 2 / 25e9),
        ("ICI", 8, 8, 1e-6 + 1e9 / 4 / 83e9),  # four chips to their four neighbours
    ],
)
def test_transfers_are_closed_forms_too(route, source, target, wanted) -> None:
    island = V3.topology(32)
    found = V3.transfer(10**9, route, island, source, target)
    assert found.seconds == pytest.approx(wanted, rel=1e-3)


def test_within_an_island_of_gpus_a_domain_is_left_over_nics() -> None:
    island = H100.topology(16)
    assert H100.transfer(10**9, "ICI", island, 8, 8).formula == "over DCN"
    assert H100.transfer(10**9, "ICI", island, 4, 4).formula == "through a switch"
    assert H100.transfer(10**9, "ICI", island, 8, 4, shared=4).formula == "through a switch", "8 devices in all"
    assert H100.transfer(10**9, "ICI", island, 8, 4, shared=3).formula == "over DCN"


def test_a_move_within_an_island_reaches_what_a_permute_reaches_and_shares_cores() -> None:
    shares = V5E.efficiency.replace(permute=0.5, at_once=2.0)
    slower = CostModel.of("tpu_v5e", efficiency=shares)
    full, found = (m.transfer(10**9, "ICI", m.topology(16), 4, 4) for m in (V5E, slower))
    assert found.bandwidth == pytest.approx(full.bandwidth * 4 / 2 / 0.5)
    assert slower.transfer(10**9, "host", slower.topology(16), 0, 4).bandwidth == pytest.approx(
        2 * 1e9 / 4 / 15e9, rel=1e-3
    )


def test_an_island_of_another_chip_is_refused() -> None:
    other = H100.topology(8)
    asked = [lambda: V3.node(Work(()), other, {"x": 8}), lambda: V3.transfer(8, "local", other, 1, 1)]
    for ask in asked:
        with pytest.raises(
            pw.UsageError, match=r"an island of gpu_h100_sxm is no island of tpu_v3, .*one kind of chip"
        ):
            ask()


def test_what_comes_from_the_host_takes_as_long_on_every_island_of_a_chip() -> None:
    small, large = V3.topology(8), V3.topology(32)
    assert V3.transfer(10**6, "host", small, 1, 4) == V3.transfer(10**6, "host", large, 1, 4) == V3.from_host(10**6, 4)


def test_an_unknown_route_is_refused() -> None:
    with pytest.raises(pw.UsageError, match="choose one of 'host', 'local', 'ICI', 'DCN'"):
        V3.transfer(1, "ether", V3.topology(8), 4, 4)


@pytest.mark.parametrize(
    ("model", "devices", "sizes", "axes", "size", "wanted"),
    [
        (V5E, 16, {"x": 16}, ("x",), 16, AxisGroup((4, 4))),
        (V5E, 16, {"a": 4, "b": 4}, ("b",), 4, AxisGroup((1, 4))),
        (V5E, 16, {"a": 4, "b": 4}, ("a",), 4, AxisGroup((4, 1))),
        (V5E, 16, {"a": 2, "b": 8}, ("b",), 8, AxisGroup((2, 4))),
        (V5E, 16, {"a": 2, "b": 8}, ("a",), 2, AxisGroup((2, 1), 2, STRIDED)),
        (V5E, 16, {"a": 4, "b": 2, "c": 2}, ("a", "c"), 8, AxisGroup((4, 2))),
        (V5E, 16, {"a": 4, "b": 2, "c": 2}, ("a", "b"), 8, AxisGroup((4, 2), 2, STRIDED)),
        (V5E, 16, {"a": 3, "b": 5}, ("b",), 5, AxisGroup(5, note=STRIDED)),
        (V3, 8, {"a": 4, "b": 2}, ("b",), 2, AxisGroup(2)),
        (V3, 8, {"a": 4, "b": 2}, ("a",), 4, AxisGroup((2, 2), 2, STRIDED)),
        (V5E, 16, {"x": 16}, (), 4, AxisGroup(4, note=UNKNOWN)),
        (V5E, 16, {"x": 16}, (), 16, AxisGroup(16)),
        (H100, 16, {"a": 2, "b": 8}, ("b",), 8, AxisGroup(8)),
        (H100, 16, {"a": 2, "b": 8}, ("a",), 2, AxisGroup((1, 2))),
        (H100, 16, {"a": 8, "b": 2}, ("a",), 8, AxisGroup((4, 2))),
    ],
)
def test_groups_of_a_mesh_lie_where_their_devices_are(model, devices, sizes, axes, size, wanted) -> None:
    assert group_of(model.topology(devices), tuple(sizes.items()), axes, size) == wanted


@given(st.sampled_from([(2, 2, 4), (4, 4), (16,), (2, 8), (8, 2), (2, 2, 2, 2)]), st.data())
def test_a_box_holds_as_many_chips_as_the_group_and_shares_what_lies_between(shape, data) -> None:
    sizes = {f"m{i}": n for i, n in enumerate(shape)}
    axes = tuple(data.draw(st.sets(st.sampled_from(sorted(sizes)), min_size=1)))
    size = math.prod(sizes[axis] for axis in axes)
    island = V5E.topology(16)
    laid = group_of(island, tuple(sizes.items()), axes, size)
    if isinstance(laid.group, tuple):
        assert math.prod(laid.group) == size
        assert 1 <= laid.share <= 16 // size
        assert (laid.note == STRIDED) == (laid.share > 1)


def test_an_efficiency_above_the_peak_is_refused() -> None:
    with pytest.raises(pw.UsageError, match="matmul is 1.2; write a number above 0 and at most 1"):
        V5E.efficiency.replace(matmul=1.2)
    with pytest.raises(pw.UsageError, match="no field 'matmull'; did you mean 'matmul' or 'matmul_bw'"):
        V5E.efficiency.replace(matmull=0.2)
    assert isinstance(V5E.efficiency, Efficiency)
