"""Objects of which there is one: what a copy of them is, and why they cannot be pickled."""

from __future__ import annotations

from typing import NoReturn, Self, SupportsIndex

from pathways_nb.errors import UsageError


class Unique:
    """A copy is the object itself, as of a function, since traces, devices or clients know it; pickling is refused.

    A subclass says why in ``_not_pickled``: a clause about itself, and what to do.
    """

    _not_pickled: str

    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: object) -> Self:
        return self

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        raise UsageError(f"{self!r} {self._not_pickled}")
