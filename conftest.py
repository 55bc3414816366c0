"""Loads what every test directory shares; a plugin list is only allowed in the topmost conftest."""

pytest_plugins = ("tests.support.chromium",)
