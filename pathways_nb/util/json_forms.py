"""Forms of saved files: what JSON holds for a value, declared once for writing and for reading.

The simplest form is a method of ``Field``, such as ``Field.text`` or ``partial(Field.whole, low=-1)``: JSON holds the
value as it is, and the method checks type and range when it is read. The functions here make forms of forms, such as
``record(Bucket, params=Field.texts, keep=Field.truth)``. So a field that is added to a file is added in one place.

What refers to other parts of a file (the input of a node to the values that exist) is checked after reading, where the
file is read.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from pathways_nb.util.json_text import Field

T = TypeVar("T")


def _as_it_is(value: Any) -> Any:
    return value


@dataclass(frozen=True, slots=True)
class Form(Generic[T]):
    """How a value is kept in a JSON file.

    Args:
        read: returns the value of a field; raises ``DamagedError`` where its type or range is another one.
        write: returns what JSON holds for a value; by default the value itself.
        may_lack: whether a record may lack it, as files of before it was added do.
    """

    read: Callable[[Field], T]
    write: Callable[[Any], Any] = _as_it_is
    may_lack: bool = False


Declared = Form[T] | Callable[[Field], T]
"""A form, or a method of ``Field``."""


def _form(declared: Declared[T]) -> Form[T]:
    return declared if isinstance(declared, Form) else Form(declared)


def one_of(*choices: str) -> Form[str]:
    """Return the form of a text that is one of these."""
    return Form(lambda field: field.one_of(*choices))


def optional(declared: Declared[Any], default: Any = None, may_lack: bool = False) -> Form[Any]:
    """Return the form of a value that may be null in the file, and ``default`` in Python."""
    form = _form(declared)
    return Form(
        lambda field: default if field.value is None else form.read(field),
        lambda value: None if value is None else form.write(value),
        may_lack,
    )


def list_of(declared: Declared[T], length: int | None = None) -> Form[tuple[T, ...]]:
    """Return the form of a list of equal things, of ``length`` of them if that is given."""
    form = _form(declared)
    return Form(lambda field: tuple(map(form.read, field.rows(length))), lambda values: list(map(form.write, values)))


def row(make: Callable[[Iterable[Any]], T], *declared: Declared[Any], before: int | None = None) -> Form[T]:
    """Return the form of a tuple of different things: a list with each at its position.

    Args:
        make: is called with the parts: ``tuple``, or the method ``_make`` of a named tuple.
        *declared: the form of each part.
        before: number of parts in files of before the last ones were added; None if there are none of those.
    """
    forms = [_form(one) for one in declared]
    # A plain list is copied at once: a profile has ten thousands of rows, and calls for each part would take longest.
    is_plain = all(form.write is _as_it_is for form in forms)

    def read(field: Field) -> T:
        parts = field.rows()
        if len(parts) != before:
            parts = field.rows(len(forms))
        return make([form.read(part) for form, part in zip(forms, parts, strict=False)])

    def write(parts: Any) -> list[Any]:
        return list(parts) if is_plain else [form.write(part) for form, part in zip(forms, parts, strict=True)]

    return Form(read, write)


def record(make: Callable[..., T], /, only: tuple[str, ...] | None = None, **declared: Declared[Any]) -> Form[T]:
    """Return the form of an object with attributes: an object of JSON with a key for each.

    Args:
        make: is called with the attributes by name; a class.
        only: keys that the file may have besides, in files that people edit: another one is misspelt, and refused. By
            default any may be there, as those that a later version adds.
        **declared: the form of each attribute, in the order in which they are written and read.
    """
    forms = {name: _form(one) for name, one in declared.items()}

    def read(field: Field) -> T:
        if only is not None:  # before a value is read, whose key may be missing because it is misspelt
            field.only(*only, *forms)
        return make(
            **{name: form.read(field.get(name) if form.may_lack else field[name]) for name, form in forms.items()}
        )

    def write(value: T) -> dict[str, Any]:
        return {name: form.write(getattr(value, name)) for name, form in forms.items()}

    return Form(read, write)
