"""The cost model: chips, topologies, closed forms, the work and memory of a jaxpr."""
