"""The share of an exchange that lies under computation, against closed forms."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pathways_nb.trace.exchange_hiding import Exchange, exchange, length_of_intersection
from pathways_nb.trace.record import Record
from pathways_nb.trace.rows import Row, label_of
from pathways_nb.util.intervals import union
from tests.support.examples import examples


def record(*rows: tuple[str, int, float, float], route: str = "DCN") -> Record:
    """Events of a kind on an island from a start to an end."""
    made = Record()
    for kind, island, start, end in rows:
        where = {"route": route} if kind == "transfer" else {}
        made.add(Row(label_of(kind, kind, "step", "", island=island, **where), start, end, 1))
    return made


def found(*rows: tuple[str, int, float, float], route: str = "DCN") -> Exchange:
    return exchange(record(*rows, route=route).events())


def test_only_what_the_receiving_island_computes_meanwhile_hides_a_transfer() -> None:
    assert found(("compute", 0, 0, 4), ("transfer", 0, 1, 3)) == Exchange(2.0, 2.0)
    assert found(("compute", 1, 0, 4), ("transfer", 0, 1, 3)) == Exchange(2.0, 0.0)
    assert found(("compute", 0, 0, 2), ("collective", 0, 2, 2.5), ("transfer", 0, 1, 3)) == Exchange(2.0, 1.5)


def test_transfers_at_once_count_once_and_islands_add_up() -> None:
    rows = [("transfer", 0, 0, 2), ("transfer", 0, 1, 3), ("transfer", 1, 0, 2), ("compute", 0, 2, 5)]
    assert found(*rows) == Exchange(5.0, 1.0)
    assert found(*rows).hidden_share == pytest.approx(0.2)
    assert str(found(*rows)) == "exchange between islands 5 s, 20% under computation"


def test_without_an_exchange_nothing_is_exposed_and_transfers_within_an_island_are_none() -> None:
    assert found(("compute", 0, 0, 1)).hidden_share == 1.0
    assert found(("transfer", 0, 0, 1), route="ICI") == found(("transfer", 0, 0, 1), route="host") == Exchange(0.0, 0.0)


def test_a_pipeline_of_buckets_exposes_only_its_last_transfer() -> None:
    """Layers of c seconds, each followed by a transfer of t <= c: all but the last lie under the next layer."""
    layers, c, t = 6, 1.0, 0.5
    rows = [("compute", 0, k * c, (k + 1) * c) for k in range(layers)]
    rows += [("transfer", 0, (k + 1) * c, (k + 1) * c + t) for k in range(layers)]
    assert found(*rows).hidden_share == pytest.approx((layers - 1) / layers)


spans = st.lists(st.tuples(st.integers(0, 40), st.integers(1, 6)), max_size=6)


@given(spans, spans)
@examples(150)
def test_common_is_the_length_of_the_intersection(one, other) -> None:
    made = [union(*(np.array(x, float) for x in ([a for a, _ in s], [a + n for a, n in s]))) for s in (one, other)]
    covered = [{at for a, n in s for at in range(a, a + n)} for s in (one, other)]
    assert length_of_intersection(*made) == len(covered[0] & covered[1])
