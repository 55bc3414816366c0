"""Plans of sharded data parallelism as data."""
