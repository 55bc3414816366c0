"""Faults at random on a Ray cluster: ``python -m tests.jax.cluster_faults --calls 3000 --faults 30``."""
