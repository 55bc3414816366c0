"""Small real inputs and tables for notebooks, tests and benchmarks, read from what is here: nothing is downloaded."""

from pathways_datasets.tables import hardware, published
from pathways_datasets.text import batches, stdlib_source

__all__ = ["batches", "hardware", "published", "stdlib_source"]
