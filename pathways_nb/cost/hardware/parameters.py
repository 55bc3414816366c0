"""Parameters of hardware: immutable, in SI units, each with the origin of its value.

``Parameters`` is the base of ``Chip``, ``Network``, ``HostCosts`` and ``Efficiency``: ``replace``, ``origin``, a
readable table, and the refusal of values that no hardware has. Fields of a subclass that are made by the functions
below (``rate``, ``count``, …) are parameters; the metadata of each says its unit and the values it may have. So a file,
a table and ``replace`` are all checked by one rule, stated where the field is declared.

A simulated number is only as good as its inputs; therefore an origin travels with every value up to the table that a
user reads.
"""

from __future__ import annotations

import dataclasses
import html
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, Self

from pathways_nb.errors import UsageError, is_number, nearest, three_digits
from pathways_nb.util.json_text import shortened

KINDS = ("datasheet", "derived", "literature", "recalled", "assumed", "measured here", "yours")
_FITTED = "fitted on "
_REQUIRED = object()


class Origin(NamedTuple):
    """Where a value comes from.

    ``kind`` is ``"datasheet"``, ``"derived"`` (arithmetic on published figures), ``"literature"``, ``"recalled"`` (not
    read again), ``"assumed"`` (no source), ``"measured here"``, ``"fitted on …"`` or ``"yours"``; ``source`` names it.
    """

    kind: str
    source: str = ""

    def __str__(self) -> str:
        return f"{self.kind}: {self.source}" if self.source else self.kind


class Rule(NamedTuple):
    """The values that a parameter may have.

    Args:
        unit: of the value.
        wanted: what to write instead, at the end of an error.
        holds: whether a value is allowed.
    """

    unit: str
    wanted: str
    holds: Callable[[Any], bool]


def rate(unit: str) -> Any:
    """Return a field for a finite number above 0."""
    return _parameter(Rule(unit, f"a finite number above 0, in {unit}", lambda v: is_number(v) and v > 0))


def optional_rate(unit: str) -> Any:
    """Return a field for a finite number above 0, or None where the hardware has no such unit."""
    rule = Rule(unit, f"a finite number above 0, in {unit}, or None", lambda v: v is None or (is_number(v) and v > 0))
    return _parameter(rule, None)


def duration(default: Any = _REQUIRED) -> Any:
    """Return a field for a finite number of seconds, 0 or more."""
    return _parameter(Rule("s", "a finite number of seconds, 0 or more", lambda v: is_number(v) and v >= 0), default)


def fraction(default: Any = _REQUIRED) -> Any:
    """Return a field for a number above 0 and at most 1."""
    return _parameter(Rule("", "a number above 0 and at most 1", lambda v: is_number(v) and 0 < v <= 1), default)


def count() -> Any:
    """Return a field for a whole number of at least 1, and below 10⁹."""
    return _parameter(Rule("", "a whole number of at least 1", _is_some))


def optional_count() -> Any:
    """Return a field for a whole number of at least 1, or None where it has no meaning."""
    return _parameter(Rule("", "a whole number of at least 1, or None", lambda v: v is None or _is_some(v)), None)


def counts() -> Any:
    """Return a field for one or more whole numbers of at least 1."""
    wanted = "one or more whole numbers of at least 1, such as (16, 16)"
    return _parameter(Rule("", wanted, lambda v: isinstance(v, tuple) and v != () and all(map(_is_some, v))))


def choice(*names: str) -> Any:
    """Return a field for one of these names."""
    return _parameter(Rule("", f"one of {', '.join(map(repr, names))}", lambda v: v in names))


def optional_name() -> Any:
    """Return a field for a text that is not empty, or None."""
    holds = lambda v: v is None or (isinstance(v, str) and v != "")  # noqa: E731
    return _parameter(Rule("", "a text that is not empty, or None", holds), None)


def is_count(value: object) -> bool:
    """Return whether a value is a whole number of at least 1, of Python or NumPy; a truth value is none."""
    try:
        # ``operator.index`` takes whole numbers of NumPy as well, but also True.
        return not isinstance(value, bool) and operator.index(value) >= 1  # type: ignore[arg-type]
    except TypeError:
        return False


def _is_some(value: Any) -> bool:
    """Return whether a value is a count below 10⁹."""
    return is_count(value) and value < 10**9


def _parameter(rule: Rule, default: Any = _REQUIRED) -> Any:
    """Return a dataclass field with this rule."""
    # None is a value that a parameter may have, so another object stands for "no default".
    given = {} if default is _REQUIRED else {"default": default}
    return dataclasses.field(metadata={"rule": rule}, **given)


def rules(cls: type) -> Mapping[str, Rule]:
    """Return the rules of a class's parameters, by name."""
    return {f.name: f.metadata["rule"] for f in dataclasses.fields(cls) if "rule" in f.metadata}


def required(cls: type) -> tuple[str, ...]:
    """Return the names of the parameters that have no default."""
    fields = dataclasses.fields(cls)
    return tuple(f.name for f in fields if "rule" in f.metadata and f.default is dataclasses.MISSING)


def tidy(value: Any) -> Any:
    """Return a list, as JSON and people write it, as a tuple; all else unchanged."""
    # JSON has only lists; parameters have to be hashable, as keys of the cost model's answers.
    return tuple(value) if isinstance(value, list) else value


def check(cls: type, where: str, values: Mapping[str, Any]) -> None:
    """Refuse what is no parameter of the class, and values that no hardware has.

    Args:
        cls: class of the parameters.
        where: name of a chip or a file, for the error.
        values: by name of the field.

    Raises:
        UsageError: names ``where`` (a chip, a file), the field and its value.
    """
    known = rules(cls)
    for name, value in values.items():
        if name not in known:
            # A misspelt field would otherwise be passed over, and the usual value simulated.
            near = nearest(name, known)
            meant = f"; did you mean {' or '.join(map(repr, near))}?" if near else "."
            raise UsageError(f"{where}: there is no field {name!r}{meant} Fields: {', '.join(known)}.")
        if not known[name].holds(value):
            raise UsageError(f"{where}: {name} is {shortened(value)}; write {known[name].wanted}.")


@dataclass(frozen=True, repr=False, kw_only=True)
class Parameters:
    """Immutable parameters with their origins; two with the same name and values are equal."""

    base: str
    """Name before any value was changed."""
    changed: tuple[str, ...] = ()
    origins: Mapping[str, Origin] = dataclasses.field(compare=False)
    _title: ClassVar[str] = ""
    """What the table calls it, if not by the name of its class."""

    def __post_init__(self) -> None:
        # However it was made: by a table, a file, ``replace`` or a call.
        check(type(self), self.name, {name: getattr(self, name) for name in rules(type(self))})

    def __reduce__(self) -> Any:
        fields = {f.name: getattr(self, f.name) for f in dataclasses.fields(self)}
        return _remade, (type(self), {**fields, "origins": dict(self.origins)})

    @property
    def name(self) -> str:
        """Its name, and what was changed."""
        return f"{self.base}, changed: {', '.join(self.changed)}" if self.changed else self.base

    def origin(self, field: str) -> Origin:
        """Return where the value of a field comes from.

        Raises:
            UsageError: there is no such field.
        """
        if field not in rules(type(self)):
            # Only to raise its error, which lists the fields.
            check(type(self), self.name, {field: None})
        # Of a default that no table wrote, nothing is known.
        return self.origins.get(field, Origin("not given"))

    def replace(self, **values: Any) -> Self:
        """Return a copy with these values, whose origin becomes ``"yours"``.

        Args:
            values: fields and their new values in SI units; ``name=`` gives the copy a name of its own, otherwise the
                name says what was changed.

        Raises:
            UsageError: a field that does not exist (the nearest are named), or a value that no hardware has.
        """
        base = values.pop("name", None)
        values = {name: tidy(value) for name, value in values.items()}
        check(type(self), self.name, values)
        if base is not None and not (isinstance(base, str) and base):
            raise UsageError(f"{self.name}: name is {base!r}; write a text that is not empty.")
        origins = MappingProxyType({**self.origins, **dict.fromkeys(values, Origin("yours"))})
        # In the order of the fields, so that equal changes give equal names, however many steps they took.
        changed = () if base else tuple(n for n in rules(type(self)) if n in values or n in self.changed)
        return dataclasses.replace(self, base=base or self.base, changed=changed, origins=origins, **values)

    def rows(self) -> list[tuple[str, str, str]]:
        """Return field, value with its unit, and origin, of every field that has a value."""
        values = [(name, getattr(self, name), rule.unit) for name, rule in rules(type(self)).items()]
        return [(name, say(value, unit), str(self.origin(name))) for name, value, unit in values if value is not None]

    def __repr__(self) -> str:
        rows = self.rows()
        # Names and values in columns of equal width; origins are longest, and come last.
        wide, long = (max(len(row[column]) for row in rows) for column in (0, 1))
        lines = [f"  {name:<{wide}}  {value:>{long}}  {origin}" for name, value, origin in rows]
        return "\n".join([f"<{self._title or type(self).__name__.lower()} {self.name}>", *lines])

    def _repr_html_(self) -> str:
        cell = '<td style="text-align:left">{}</td>'
        rows = ["".join(cell.format(html.escape(text)) for text in row) for row in self.rows()]
        head = f"<caption><b>{html.escape(self.name)}</b></caption><tr><th>field</th><th>value</th><th>origin</th></tr>"
        return f"<table>{head}{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _remade(cls: type[Parameters], fields: dict[str, Any]) -> Parameters:
    """Return unpickled parameters: read-only views of mappings cannot be pickled themselves."""
    return cls(**{**fields, "origins": MappingProxyType(fields["origins"])})


def origin_of(kind: Any, source: Any = "") -> Origin:
    """Return an origin from the form that tables write.

    Args:
        kind: one of ``KINDS``, or ``"fitted on …"``.
        source: name of the source.

    Raises:
        ValueError: the kind is none of those that ``Origin`` names, or the source is no text.
    """
    # "fitted on " needs a name behind it.
    known = isinstance(kind, str) and (kind in KINDS or (kind.startswith(_FITTED) and kind != _FITTED))
    if not known or not isinstance(source, str):
        raise ValueError(
            f"{shortened(kind)} is no kind of origin; write one of {', '.join(map(repr, KINDS))} or 'fitted on …'"
        )
    return Origin(kind, source)


def say(value: Any, unit: str) -> str:
    """Return a value as people write it: ``say(9e11, "bytes/s")`` is ``"900 GB/s"``.

    Args:
        value: a number, a tuple of numbers, or a text.
        unit: of the value; empty for none.
    """
    if isinstance(value, tuple):
        return " × ".join(map(str, value))
    if not unit:
        return f"{value:.3g}" if isinstance(value, float) else str(value)
    short = unit.replace("bytes", "B")
    steps = (1e-6, "µ"), (1e-3, "m"), (1.0, ""), (1e3, "k"), (1e6, "M"), (1e9, "G"), (1e12, "T"), (1e15, "P")
    # Up to half a unit of the third digit below 1000 rounds up to the next prefix: 999.6 MB/s is 1 GB/s.
    factor, prefix = max((step for step in steps if value >= 0.9995 * step[0]), default=(1.0, ""))
    return f"{three_digits(value / factor)} {prefix}{short}"
