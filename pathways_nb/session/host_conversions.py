"""The conversions of a future to a host value by Python and NumPy, which wait for it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np


class HostConversions:
    """A base class of what waits for its value when Python or NumPy converts it to a host value."""

    def result(self) -> Any:
        """Wait for the value and return it as NumPy."""
        raise NotImplementedError

    def __float__(self) -> float:
        __tracebackhide__ = True
        return float(self.result())

    def __int__(self) -> int:
        __tracebackhide__ = True
        return int(self.result())

    def __bool__(self) -> bool:
        __tracebackhide__ = True
        return bool(self.result())

    def __index__(self) -> int:
        __tracebackhide__ = True
        return self.result().__index__()

    def __complex__(self) -> complex:
        __tracebackhide__ = True
        return complex(self.result())

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        __tracebackhide__ = True
        return np.asarray(self.result(), dtype=dtype)

    def __iter__(self) -> Iterator[Any]:
        __tracebackhide__ = True
        return iter(self.result())

    def __format__(self, spec: str) -> str:
        __tracebackhide__ = True
        return format(self.result(), spec) if spec else repr(self)
