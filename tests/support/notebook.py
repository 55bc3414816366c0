"""A real IPython that runs cells as a kernel does."""

from __future__ import annotations

from IPython.core.interactiveshell import InteractiveShell


class Notebook:
    """Runs cells as a kernel does."""

    def __init__(self) -> None:
        InteractiveShell.clear_instance()
        self.shell = InteractiveShell.instance(colors="nocolor")

    def __call__(self, source: str):
        self.last = self.shell.run_cell(source, store_history=True)
        self.number = self.last.execution_count
        return self.last

    def ok(self, source: str) -> None:
        result = self(source)
        result.raise_error()

    def fails(self, source: str) -> BaseException:
        result = self(source)
        error = result.error_in_exec or result.error_before_exec
        assert error is not None, "the cell ran"
        return error

    @property
    def names(self):
        return self.shell.user_ns
