"""Costs from measurements in the file format of TeraPipe's authors (github.com/zhuohan123/terapipe, latency_model.py).

One file has the latencies of one layer under keys ``b_s_c`` (sequences, tokens, context), another those of sending
tensors of some numbers of tokens. The table made of them is the authors' own, by default with two peculiarities of
their program, so that their results are reproduced: the regression for the context is added at context 0, too, and
``b`` sequences of ``s`` tokens are looked up among the messages as ``(b - 1) L + s`` tokens.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from pathways_nb.util.json_text import DamagedError, Field

_TESTED, _SEED = 0.25, 42
"""Share of the measurements that the authors keep from their regression, and the seed that chooses them."""


@dataclass(frozen=True)
class AuthorsFiles:
    """The contents of both files.

    Args:
        latencies: by ``b_s_c``, seconds of one layer.
        communication: seconds of messages (``mean``) by their tokens (``tensor_sizes``).
    """

    latencies: Mapping[str, Mapping[str, float]]
    communication: Mapping[str, Any]

    @classmethod
    def read(cls, latencies: Field, communication: Field) -> AuthorsFiles:
        """Return the contents of both files, checked.

        Raises:
            DamagedError: naming the field that is wrong.
        """
        for key in latencies.table():
            if not re.fullmatch(r"[1-9]\d{0,8}_[1-9]\d{0,8}_\d{1,9}", key):
                raise DamagedError(f"{key!r} is no key of latencies, sequences_tokens_context such as '1_128_0'")
        means = ("forward_mean", "backward_mean", "update_mean")
        found = {key: {name: latencies[key][name].number() for name in means} for key in latencies.table()}
        tokens = communication["tensor_sizes"].numbers()
        seconds = [one.number() for one in communication["mean"].rows(len(tokens))]
        return cls(found, {"tensor_sizes": tokens, "mean": seconds})

    @property
    def update(self) -> float:
        """Seconds of the optimizer for one layer: the mean of all measurements."""
        return float(np.mean([one["update_mean"] for one in self.latencies.values()]))

    def table(self, length: int, batch: int, layers: int, granularity: int, intended: bool = False) -> np.ndarray:
        """Return seconds of slices on one stage, as ``plan`` takes them.

        Args:
            length: tokens of a sequence.
            batch: sequences of the largest group.
            layers: of a stage.
            granularity: tokens of a unit.
            intended: leave out the two peculiarities of the authors' program.
        """
        n = length // granularity
        b, tokens, context = np.ogrid[1 : batch + 1, granularity : length + 1 : granularity, 0:length:granularity]
        # (batch, units, 1) tokens of a message, which is sent once forward and once backward
        messages = b * tokens if intended else (b - 1) * length + tokens
        sending = np.interp(messages, self.communication["tensor_sizes"], self.communication["mean"])
        intercept, *slopes = self._regression()
        terms = (b * tokens, b * context, b * tokens * context)
        added = intercept + sum(slope * term for slope, term in zip(slopes, terms, strict=True))
        if intended:
            added = np.where(context > 0, added, 0.0)
        return layers * (self._without_context(n, batch, granularity)[..., None] + added) + 2 * sending

    def _seconds(self) -> dict[tuple[int, int, int], float]:
        """Return seconds of forward and backward by sequences, tokens and context, in the order of the file."""
        return {
            (int(b), int(s), int(c)): one["forward_mean"] + one["backward_mean"]
            for key, one in self.latencies.items()
            for b, s, c in [key.split("_")]
        }

    def _without_context(self, units: int, batch: int, granularity: int) -> np.ndarray:
        """Return the seconds of one layer without context, by sequences and units; NaN where there are none."""
        # What is not measured stays NaN: the planner names the first such slice that it would need.
        found = np.full((batch, units), np.nan)
        for (b, s, c), seconds in self._seconds().items():
            if c == 0 and b <= batch and s <= units * granularity:
                found[b - 1, s // granularity - 1] = seconds
        return found

    def _regression(self) -> np.ndarray:
        """Return intercept and slopes, by b·s, b·c and b·s·c, of the seconds that context adds to a layer."""
        seconds = self._seconds()
        rows = [
            (b * s, b * c, b * s * c, found - seconds[b, s, 0])
            for (b, s, c), found in seconds.items()
            if c and (b, s, 0) in seconds
        ]
        # As scikit-learn's ``train_test_split`` divides rows: the same rows give the authors' coefficients.
        chosen = np.random.RandomState(_SEED).permutation(len(rows))[math.ceil(_TESTED * len(rows)) :]
        X, y = np.array(rows)[chosen, :3], np.array(rows)[chosen, 3]
        # Centred, so that the intercept, which is not one of the columns, drops out.
        slopes = np.linalg.lstsq(X - X.mean(axis=0), y - y.mean())[0]
        return np.array([y.mean() - X.mean(axis=0) @ slopes, *slopes])
