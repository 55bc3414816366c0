"""Words of the field in plain words, shown on hover: a newcomer meets them before any page explains them."""

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
IN_TEXT = {
    "makespan": "from the first work on a device to the end of the last",
    "utilisation": "the part of the makespan in which devices work",
    "dispatch": "what the controller does to bring work to the devices",
    "hide it": "while devices work on nodes of that length, the controller has time to send the next ones",
    "launches": "work sent to devices, one computation at a time",
    "had their end measured": "the controller waited for these to end; to wait for each would slow the devices down",
    "interpolated": "put between two times that were measured, as evenly as the work is",
    "end not watched": "the controller did not wait for its end, which would slow the devices down",
    "without exact stamps": "their times are estimated from what the controller saw; pw.profile takes exact ones",
    "peak memory": "the most that a device held at any time",
    "taken as already in place": "given by shape only, so no time is counted for bringing them there",
    "messages on their way": "from the controller to the islands, over the network",
    "back-pressure": "new work is held back until there is room for it",
    "no client": TERMS["no client"],
    "DCN": TERMS["DCN"],
    "ICI": TERMS["ICI"],
    "bubble": "time in which devices of a pipeline have nothing to do",
    "critical path": "the chain of events that decides how long the run takes",
    "slack": "how much later it could end without making the run longer",
    "exposed": "communication during which the device does not compute",
    "dependency": "it waits for a value that is still being computed",
    "warm-up": "before the first work reaches the device",
    "drain": "after the device's last work",
    "scheduling": "it waits for its turn among other programs",
}
"""Words that sentences, summaries and legends use, wherever they stand in a text."""
