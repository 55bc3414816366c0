"""The figures of the tenants' bench, from records made by hand: windows that are full, too short, or without a client."""

from __future__ import annotations

import numpy as np
import pytest

from pathways_nb.bench import tenants
from pathways_nb.trace.record import Events
from pathways_nb.trace.rows import Label, Row


def gangs(clients: list[int], lasts: float = 1.0) -> Events:
    """One gang after another, each of the client with this number."""
    labels = [Label("compute", "work", client=f"client {number}") for number in range(8)]
    return Events.from_rows([Row(labels[n], at * lasts, (at + 1) * lasts) for at, n in enumerate(clients)])


def test_shares_that_are_kept_in_every_window_have_no_error() -> None:
    events = gangs([0, 1, 1] * 10)
    assert tenants.worst_error(events, (1, 2), window=3) == pytest.approx(0)
    assert tenants.got(events, (1, 2)) == [1.0, 2.0]


def test_the_worst_window_counts() -> None:
    """Among windows of four, one has three gangs of a client that should have two."""
    assert tenants.worst_error(gangs([0, 1, 0, 1, 1, 1, 0, 0]), (1, 1), window=4) == pytest.approx(0.5)


def test_a_client_without_a_gang_in_a_window_has_an_error_of_one() -> None:
    assert tenants.worst_error(gangs([0, 0, 0, 1]), (3, 1), window=3) == pytest.approx(1.0)


@pytest.mark.parametrize("count", [0, 1, 399])
def test_fewer_gangs_than_a_window_say_nothing(count) -> None:
    assert tenants.worst_error(gangs([0] * count), (1, 1)) is None


def test_a_window_as_long_as_the_record_is_one_window() -> None:
    assert tenants.worst_error(gangs([0, 1] * 200), (1, 1)) == pytest.approx(0)


def test_gangs_that_took_no_time_have_no_shares_and_no_rate() -> None:
    events = gangs([0, 1] * 5, lasts=0.0)
    assert tenants.worst_error(events, (1, 1), window=4) is None
    assert tenants.got(events, (1, 1)) == []
    assert tenants.rate(events) == []


def test_a_turn_without_gangs_has_no_rate_and_the_others_have_a_median() -> None:
    assert tenants.rate(gangs([])) == []
    assert tenants.rate(gangs([0, 0, 1, 1], lasts=0.5)) == [(2.0, 1.0)]
    half = Events.from_rows([Row(Label("compute", "work"), at, at + 0.5) for at in np.arange(4.0)])
    rates = {1: [*tenants.rate(half), *tenants.rate(gangs([]))], 4: tenants.rate(gangs([]))}
    assert tenants.medians(rates) == {
        "1 clients, per second": pytest.approx(4 / 3.5),
        "1 clients, utilisation": pytest.approx(2 / 3.5),
    }


def test_figures_that_could_not_be_measured_are_left_out(monkeypatch) -> None:
    """As on a machine on which nothing ended in time."""
    monkeypatch.setattr(tenants, "compete", lambda *args, **options: gangs([]))
    result = tenants.run()
    assert result["figures"] == {}
    assert result["detail"]["asked 1_1_1_1, gangs"] == "0, in windows of 400"
    assert result["detail"]["asked 1_2_4_8, got"] == "nothing that took time"
    assert [row["size"] for row in result["detail"]["sizes"]] == list(tenants.ROUNDS)
