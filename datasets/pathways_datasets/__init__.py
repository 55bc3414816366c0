"""Small real inputs and tables for notebooks, tests and benchmarks, read from this package: nothing is downloaded.

The package imports nothing of ``pathways_nb``, so its data can be used and checked alone.
"""

from pathways_datasets.packaged_tables import (
    compilers,
    h200_seconds,
    hardware,
    launch_constants,
    published,
    published_steps,
    recorded,
    recorded_files,
    recorded_step,
    recorded_steps,
)
from pathways_datasets.text import batches, stdlib_source

__all__ = [
    "batches",
    "compilers",
    "h200_seconds",
    "hardware",
    "launch_constants",
    "published",
    "published_steps",
    "recorded",
    "recorded_files",
    "recorded_step",
    "recorded_steps",
    "stdlib_source",
]
