"""Small models in plain JAX that notebooks, tests and benches share, and a program that shows why order matters.

Users of the package need none of them. Only notebooks, tests and ``bench`` import this package.
"""
