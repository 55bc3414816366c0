"""The cost model: chips, networks, topologies, closed forms."""
