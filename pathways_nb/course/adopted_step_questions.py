"""Questions of notebook 12: what exchanges and memory of its GPT follow from its layouts.

The answers are closed forms of the notebook's model: 32 layers, 4096 features, 1024 sequences of 2048 tokens in a step.
"""

from __future__ import annotations

from typing import Any

from pathways_nb.course.question import Question, is_near

_LAYERS, _FEATURES, _TOKENS, _BATCH, _BYTES = 32, 4096, 2048, 1024, 2
"""Layers, features, tokens of a sequence, sequences of a step, and bytes of a bfloat16."""
_GB = 1e9


def _values_gb(sequences: float) -> float:
    """Return GB of one value of each feature and token of so many sequences."""
    return sequences * _TOKENS * _FEATURES * _BYTES / _GB


def _why_received(answer: Any, expected: float) -> str:
    if is_near(answer, expected * 4 / 3):
        return "That is what it holds afterwards. It has a quarter already."
    if is_near(answer, expected / 3):
        return "That is one quarter, such as the one that it has. From how many devices does it receive one?"
    if is_near(answer, 2 * expected):
        return "A bfloat16 has 2 bytes."
    return "Multiply sequences, tokens, features, three matrices, and bytes of a number."


def _why_inputs(answer: Any, expected: float) -> str:
    if is_near(answer, expected / _LAYERS):
        return "That is one layer's."
    if is_near(answer, expected / 8):
        return "Are the inputs divided over the model axis as well? Look at the layout of what a block returns."
    if is_near(answer, 2 * expected):
        return "A bfloat16 has 2 bytes."
    return "A device has 1024 / 8 sequences. Multiply by tokens, features, layers, and bytes of a number."


def _why_parameters(answer: Any, expected: float) -> str:
    if is_near(answer, expected / 2):
        return "That is one pass. Layers are computed again in the backward pass."
    if is_near(answer, expected / _LAYERS) or is_near(answer, expected / _LAYERS / 2):
        return "That is one block's."
    if is_near(answer, 2 * expected):
        return "A bfloat16 has 2 bytes, and there are two passes."
    return "Parameters of a block, times blocks, times bytes of a number, times passes."


QUESTIONS = {
    # Three values of each feature, of a sixteenth of the sequences, without the quarter that it has.
    "12.received": Question(lambda: 3 / 4 * 3 * _values_gb(_BATCH / 16), _why_received),
    # One value of each feature and layer, of an eighth of the sequences; the model axis divides none of it.
    "12.inputs": Question(lambda: _LAYERS * _values_gb(_BATCH / 8), _why_inputs),
    # 12 · features² parameters in each block, twice.
    "12.parameters": Question(lambda: 2 * _LAYERS * 12 * _FEATURES**2 * _BYTES / _GB, _why_parameters),
}
