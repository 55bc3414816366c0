"""Loads what every test directory shares; a plugin list is only allowed in the topmost conftest."""

from tests.support.compiler_effort import prepare

prepare()  # the plugins import JAX, which reads the environment

pytest_plugins = ("tests.support.chromium", "tests.support.durations", "tests.support.failures_at_once")
