"""Chips, networks and hosts as parameters with units and origins, and the links between the chips of an island.

Formulas of operations and collectives are elsewhere, so that a new chip is data and not code. Every package of
``cost`` may import it.
"""
