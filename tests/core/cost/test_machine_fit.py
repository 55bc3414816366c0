"""From measurements of a machine that is known exactly, that machine comes back, and the model predicts them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathways_nb.cost.calibration.fitted import Check
from pathways_nb.cost.calibration.samples import Parted
from pathways_nb.cost.calibration.this_machine import fit, model_of
from pathways_nb.cost.jaxpr.node_work import Work
from tests.support import measured_machine as machines
from tests.support.measured_machine import (
    ALONE,
    BETWEEN,
    CALL,
    CROWD,
    FROM_HOST,
    LAUNCH,
    LINES,
    NODE,
    NOTICE,
    SENT,
    SHARES,
    measured,
)

MODEL = model_of(fit(measured()), "known")


def test_without_noise_every_parameter_comes_back() -> None:
    found = fit(measured())
    assert (found.node, found.node_alone) == pytest.approx((NODE, ALONE))
    assert found.oversubscription == pytest.approx(CROWD)
    for kind, line in LINES.items():
        assert found.rooflines[kind] == pytest.approx(line)
    assert found.exchanges[""] == pytest.approx(machines.START)
    for kind in SHARES:
        assert found.exchanges[kind] == pytest.approx(machines.BYTE / SHARES[kind])
    assert found.from_host == pytest.approx(FROM_HOST)
    assert found.between == pytest.approx(BETWEEN)


def test_the_controller_s_stages_add_up_to_what_a_program_takes_anyway() -> None:
    host = MODEL.host
    assert (host.call, host.launch, host.notice) == pytest.approx((CALL, LAUNCH, NOTICE))
    assert host.message == pytest.approx(SENT / 2)  # each of two islands has one
    assert host.device_launch == pytest.approx(ALONE / CROWD)
    assert host.interference == pytest.approx(NODE - ALONE)


def test_stages_that_overlap_count_only_as_far_as_there_is_room() -> None:
    chains = [replace(chain, sent=1e-3) for chain in measured().chains]
    found = fit(replace(measured(), chains=chains)).host
    assert found["call"] + 2 * found["message"] == pytest.approx(CALL + SENT + NOTICE)
    assert found["notice"] == 0


@given(st.integers(0, 200))
def test_noise_of_three_percent_moves_the_large_parameters_by_less_than_a_quarter(seed) -> None:
    found = fit(measured(0.03, seed))
    assert found.node == pytest.approx(NODE, rel=0.3)  # a difference of two programs
    assert found.oversubscription == pytest.approx(CROWD, rel=0.15)
    assert found.rooflines["matmul"].per_flop == pytest.approx(LINES["matmul"].per_flop, rel=0.25)
    assert found.rooflines["sort"].per_flop == pytest.approx(LINES["sort"].per_flop, rel=0.25)
    for kind in SHARES:
        assert found.exchanges[kind] == pytest.approx(machines.BYTE / SHARES[kind], rel=0.25)


def test_the_model_predicts_every_node_that_was_measured() -> None:
    """Chip, shares and devices that share cores, together, are the seconds that they were fitted to."""
    island = MODEL.topology(4)
    for samples in measured().samples.values():
        for sample in samples:
            found = MODEL.node(sample.work, island, {"x": 4}).seconds + MODEL.host.interference
            assert found == pytest.approx(sample.seconds), sample


def test_one_device_alone_is_as_much_faster_as_was_measured() -> None:
    work = Work((machines.amount("matmul", 1e6, 30),))
    alone, among = (MODEL.node(work, MODEL.topology(4), {"x": n}) for n in (1, 4))
    assert among.compute / alone.compute == pytest.approx(CROWD)


@pytest.mark.parametrize(("route", "move"), [("host", FROM_HOST), ("DCN", BETWEEN)])
def test_the_model_predicts_every_move_that_was_measured(route, move) -> None:
    for size in (10**3, 10**5, 10**7):
        found = MODEL.transfer(size, route, MODEL.topology(4), 4, 4)
        assert found.seconds == pytest.approx(move[0] + move[1] * size)


def test_every_number_tells_that_it_was_measured_or_why_not() -> None:
    rows = [row for part in (MODEL.chip, MODEL.network, MODEL.host, MODEL.efficiency) for row in part.rows()]
    origins = {name: origin for name, _, origin in rows}
    assert origins["fp32_flops"] == origins["hbm_bw"] == origins["call"] == origins["all_to_all"] == "measured here"
    assert origins["conv"] == "assumed: not measured here; a little less than products of matrices"
    assert origins["broadcast"] == "assumed: not measured here; as an all-gather"
    assert "not given" not in origins.values()


def test_one_island_of_one_device_has_neither_links_nor_neighbours() -> None:
    model = model_of(fit(measured(islands=1, devices=1)), "one")
    assert model.efficiency.at_once == 1
    assert str(model.network.origin("rtt")) == "assumed: not measured here; there is one island; as memory"
    assert model.chip.origin("link_bw").kind == "assumed"


def test_a_machine_so_busy_that_nodes_seem_to_take_all_the_time_still_has_a_model() -> None:
    found = fit(replace(measured(islands=1), parted=Parted(2, 1e-3, 1e3)))
    assert not any(line.per_byte or line.per_flop for line in found.rooflines.values())
    model = model_of(found, "busy")
    samples = [sample for kind in LINES for sample in found.measured.samples[kind]]
    moved = max((sample.work.read + sample.work.written) / sample.seconds for sample in samples)
    assert model.chip.hbm_bw == model.network.host_bw == pytest.approx(found.oversubscription * moved)


def test_without_noise_nothing_is_held_against_the_fit() -> None:
    checks = fit(measured()).judge()
    assert [check.kind for check in checks] == ["launch", *LINES, *SHARES, "host to island", "island to island"]
    assert all(check.error == pytest.approx(0, abs=1e-6) for check in checks)
    assert checks[1] == Check("matmul", 8, 0.1, checks[1].error)


@pytest.mark.parametrize("kind", ["sort", "permute"])
def test_errors_are_those_of_sizes_that_the_fit_has_not_seen(kind) -> None:
    """Twice the seconds at every second size: the fit on the others does not move, and is wrong by half."""
    found = measured()
    ordered = sorted(found.samples[kind], key=lambda sample: sample.size)
    doubled = [replace(one, seconds=one.seconds * (1 + number % 2)) for number, one in enumerate(ordered)]
    checks = fit(replace(found, samples={**found.samples, kind: doubled})).judge()
    assert {check.kind: check.error for check in checks}[kind] == pytest.approx(0.5, rel=1e-3)


def test_noise_of_a_class_is_the_median_of_its_measurements() -> None:
    found = measured()
    noisy = [replace(one, noise=number / 10) for number, one in enumerate(found.samples["sort"])]
    checks = fit(replace(found, samples={**found.samples, "sort": noisy})).judge()
    assert {check.kind: check.noise for check in checks}["sort"] == pytest.approx(0.35)
