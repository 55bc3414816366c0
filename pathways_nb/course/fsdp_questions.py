"""Questions of notebook 09: what gathers and reductions cost, and what each pass changes.

The answers are closed forms of the notebook's model, of 4 blocks with two matrices each, and of its small examples.
"""

from __future__ import annotations

from typing import Any

from pathways_nb.course.question import Question, is_near

_BLOCKS, _MATRICES = 4, 8
"""Blocks of the model, and their matrices."""
_LATENCY = 40
"""Microseconds that an exchange costs before its first byte."""


def _why_gather(answer: Any, expected: float) -> str:
    if is_near(answer, 80.0):
        return "It has an eighth already."
    if is_near(answer, 10.0):
        return "That is what it sends to each other device, and what it had before."
    return "It needs the parts of all other devices. How large is each part?"


def _why_sink(answer: Any, expected: int) -> str:
    if answer == _MATRICES:
        return "Nearly. The first matrix is used for gradients by the first block's input, which is x. Who needs them?"
    if answer == 0:
        return "The backward pass multiplies by the same matrices, so they stay until then."
    return "Which products of the backward pass read a matrix of parameters? Look at the gradient by a block's input."


def _why_regather(answer: Any, expected: int) -> str:
    if answer == 2 * _MATRICES:
        return "Nearly: one matrix is not needed in the backward pass."
    if answer == expected - _MATRICES:
        return "Those are the repeated ones. The forward pass gathers, too."
    return "Count A and a in the line."


def _why_bucket(answer: Any, expected: float) -> str:
    if is_near(answer, _LATENCY * 7):
        return "Those are the gathers. Reductions are in buckets, too."
    if is_near(answer, _LATENCY * _BLOCKS):
        return "That is the forward pass, or the reductions, alone."
    if is_near(answer, _LATENCY * 12):
        return "Nearly: the first block gathers one matrix for the backward pass, so its bucket saves nothing there."
    return "Count A, a and R in both lines. Each exchange less saves its latency."


def _why_prefetch(answer: Any, expected: float) -> str:
    if is_near(answer, 12.0):
        return "Can the first gather hide behind anything?"
    if is_near(answer, 11.0):
        return "That is the time of the slower of both, but computation is the slower one."
    return "All gathers but the first one run while the block in front of theirs computes."


def _why_finish(answer: Any, expected: float) -> str:
    if is_near(answer, 8.0):
        return "That is the time when each reduction holds up the next block."
    if is_near(answer, 0.0):
        return "What is computed during the last reduction?"
    return "Three of the four reductions run while the next block computes."


def _why_pace(answer: Any, expected: int) -> str:
    if answer == 4:
        return "That would be without gathering again. Or does the compiler merge the second gather with the first?"
    if answer == 15:
        return "That is one for each parameter; the last variant has buckets."
    return "Count A and a in the line of the step."


def _why_bound(answer: Any, expected: float) -> str:
    if is_near(answer, 7.0):
        return "That is what the exchanges take; some of it hides behind the computation."
    if is_near(answer, 6.3):
        return "The exchanges took 0.7 s, not the part of them that was visible."
    return "Exchanges share one stream. How long do they take, and how much of that can the computation hide?"


QUESTIONS = {
    # Each of 8 devices has an eighth of 80 MB and receives the rest.
    "09.gather": Question(lambda: 80 * 7 / 8, _why_gather),
    # The gradient by a product's input reads its matrix; nobody asks for that by x, so the first matrix is not read.
    "09.sink": Question(lambda: _MATRICES - 1, _why_sink),
    # Once in the forward pass, and again for each matrix that the backward pass reads.
    "09.regather": Question(lambda: 2 * _MATRICES - 1, _why_regather),
    # Each exchange less saves its latency: gathers go from 2 · 8 − 1 to one a block and pass, reductions from one a
    # matrix to one a block.
    "09.bucket": Question(
        lambda: _LATENCY * float((2 * _MATRICES - 1 - 2 * _BLOCKS) + _MATRICES - _BLOCKS), _why_bucket
    ),
    # The first gather hides behind nothing; from then on 2 ms of gathering hide behind 3 ms of computing.
    "09.prefetch": Question(lambda: 2.0 + _BLOCKS * 3, _why_prefetch),
    # Only the last reduction has no computation to hide behind.
    "09.finish": Question(lambda: 2.0, _why_finish),
    # One gather for each block and pass: a bucket is a block.
    "09.pace": Question(lambda: 2 * _BLOCKS, _why_pace),
    # Ten times 0.7 s of exchanges, of which 0.8 s of computation hide as much as they last.
    "09.bound": Question(lambda: 10 * 0.7 - 0.8, _why_bound),
}
