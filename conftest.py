"""Loads what every test directory shares; a plugin list is only allowed in the topmost conftest."""

import os

from tests.support.compiler_effort import prepare

# Simulated nodes are estimated without their chips' compilers, in processes that tests start as well: whether a
# compiler is installed must not change a figure. Tests in ``tests/jax/compilers`` say otherwise.
os.environ.setdefault("PATHWAYS_COMPILER", "cpu")
prepare()  # the plugins import JAX, which reads the environment

pytest_plugins = ("tests.support.chromium", "tests.support.durations", "tests.support.failures_at_once")
