"""Chips, networks and hosts as parameters with units and origins, and how the chips of an island are joined.

No formula of an operation.
"""
