"""Words of the field in plain words, for tooltips: a newcomer meets them before any page explains them."""

from __future__ import annotations

TERMS = {
    "trace": "JAX runs the Python function once to list its operations",
    "lower": "the listed operations become the compiler's input",
    "compile": "the compiler makes the program that devices run",
    "enqueue": "the island's host hands the work to its devices",
    "wait": "Python waits here for a value",
    "stall": "work that is held back: for its turn, for memory, or by a message on its way",
    "fetch": "a value is copied to Python",
    "collective": "devices exchange parts of an array with each other",
    "transfer": "a value moves to other devices",
    "host": "ordinary Python on the host of an island",
    "DCN": "the network of the data centre, between islands",
    "ICI": "the links between the chips of an island",
    "local": "within the memory of the same devices",
    "no client": "held by programs that were called outside of any pw.client block",
    "no category": "an older file does not say what it was held for",
}
"""By the word that a picture shows: what it means."""
