"""Small models that notebooks, tests and benches share, written in plain JAX.

Nothing that a user of the package needs.
"""
