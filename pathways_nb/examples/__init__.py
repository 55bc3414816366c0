"""Small models that notebooks, tests and benches share, written in plain JAX."""
