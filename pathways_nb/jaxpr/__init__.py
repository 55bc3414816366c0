"""The one form in which the project reads a jaxpr: a flat list of operations, calls inlined.

``cost.jaxpr`` adds how arrays are split, ``program`` adds places. Jaxprs are read by their fields, without JAX.
It imports only ``util``; ``plan`` and what lies above may import it.
"""
