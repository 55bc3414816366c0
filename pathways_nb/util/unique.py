"""Objects that must stay one: a copy is the object itself, and pickling is refused.

Traces, devices and clients know such an object by its identity. A copy by value would look the same and match nothing,
so copying and pickling are defined instead of left to Python.
"""

from __future__ import annotations

from typing import NoReturn, Self, SupportsIndex

from pathways_nb.errors import UsageError


class Unique:
    """Base of objects that are known by identity, as functions are: copies are the object itself, pickling is refused.

    A subclass says why in ``_not_pickled``: a clause about itself, and what to do instead.
    """

    _not_pickled: str

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    # ``__reduce_ex__`` rather than ``__reduce__``: ``pickle`` asks for it first.
    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise UsageError(f"{self!r} {self._not_pickled}")
