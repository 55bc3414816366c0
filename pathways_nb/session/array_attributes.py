"""What a future has in common with an array: shape and type, which are known at once, and conversions, which wait."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from pathways_nb.program.signature import Aval


class ArrayAttributes:
    """A base class with the attributes of an array that follow from its abstract value, ``aval``."""

    aval: Aval

    @property
    def shape(self) -> tuple[int, ...]:
        """The global shape."""
        return self.aval.shape

    @property
    def dtype(self) -> Any:
        """The element type."""
        return self.aval.dtype

    @property
    def weak_type(self) -> bool:
        """Whether the type is weak, as in JAX."""
        return self.aval.weak_type

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.aval.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)

    @property
    def nbytes(self) -> int:
        """The size of the whole array in bytes."""
        return self.aval.bytes

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of a future of a scalar")
        return self.shape[0]


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
