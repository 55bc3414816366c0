"""A log as JSON: the objects of the controller's state and its events, each once, by number.

Only classes of the controller's state and of plans are written and read, field by field, with no attribute that is not
data of the class; of functions, the built-in policies and what a table of memory copies with. So nothing that a file
names is called, and a file from elsewhere can at worst give a state that answers otherwise, or fails, which
``Log.replay`` says.
"""

from __future__ import annotations

import hashlib
import importlib
import inspect
import json
import types
from collections import Counter, defaultdict, deque
from collections.abc import Callable
from dataclasses import fields, is_dataclass
from functools import cached_property
from typing import Any
from weakref import WeakKeyDictionary

from pathways_nb import errors
from pathways_nb.controller.held_memory import DeviceBytes
from pathways_nb.controller.log import Log
from pathways_nb.controller.policies import POLICIES, is_built_in
from pathways_nb.controller.snapshot import Snapshot
from pathways_nb.util.json_text import DamagedError, Field, parse, said, shortened

_MODULES = frozenset(
    [f"pathways_nb.controller.{name}" for name in ("admission", "events_and_instructions", "held_memory", "orders",
     "policies", "precedence", "put_requests", "requests", "resources", "scheduler", "state", "state_machine", "store",
     "turns")]
    + [f"pathways_nb.plan.{name}" for name in ("exchange_order", "footprint", "graph", "plan", "virtual_slice")]
    + ["pathways_nb.util.intervals"]
)  # fmt: skip
"""Where the classes are defined that a log may name: data, and no more."""
_EARLIER = {
    "pathways_nb.controller.messages": "pathways_nb.controller.events_and_instructions",
    "pathways_nb.controller.turns.Turns": "pathways_nb.controller.turns.ContendedTurns",
    "pathways_nb.controller.held_memory.IslandMemory.runs": "pathways_nb.controller.held_memory.IslandMemory.ranges",
    "pathways_nb.controller.state.RunState": "pathways_nb.controller.state.CallState",
    "pathways_nb.controller.state_machine.StateMachine.runs": "pathways_nb.controller.state_machine.StateMachine.calls",
    "pathways_nb.controller.store.Buffer.runs": "pathways_nb.controller.store.Buffer.calls",
    "pathways_nb.controller.store.Store.gone": "pathways_nb.controller.store.Store.lost_devices",
}
"""Modules, classes and attributes under the names that logs have that were saved before they were renamed."""
_RESTORED: tuple[Callable[..., Any], ...] = (*POLICIES.values(), DeviceBytes.copy)
_FUNCTIONS = {(one.__module__, one.__qualname__): one for one in _RESTORED}
"""The functions that a log can restore, by module and name; of others only the name is kept."""
_LISTS = (list, tuple, set, frozenset, deque)
_TABLES: dict[str, Any] = {kind.__name__: kind for kind in (dict, Counter, defaultdict, WeakKeyDictionary)}
_FACTORIES: dict[str, Any] = {"": None, **{kind.__name__: kind for kind in (list, dict, set, int, Counter)}}


def to_json(log: Log) -> dict[str, Any]:
    """Return a log as values that JSON can hold.

    Raises:
        TypeError: something in it is of a class that a log cannot hold.
    """
    writer = _RowWriter()
    return {
        "snapshot": writer.write(log.snapshot.machine()),
        "entries": [[entry.now, writer.write(entry.event), entry.digest] for entry in log.entries],
        "why_not": log.why_not,
        "missing": log.missing,
        "before": log.before,
        "objects": writer.rows(),
    }


_CHECKSUM = b',"checksum":"'
"""What comes before the checksum at the end of the text of a log."""


def as_bytes(log: Log) -> bytes:
    """Return a log as JSON text, with a checksum: a log that lacks an event would show other decisions."""
    text = json.dumps(to_json(log), separators=(",", ":")).encode()[:-1]
    return text + _CHECKSUM + _checksum(text) + b'"}'


def _checksum(text: bytes) -> bytes:
    return hashlib.blake2b(text, digest_size=16).hexdigest().encode()


def of_run(text: bytes, name: str) -> Log:
    """Return the log of a saved run of this name.

    Raises:
        UsageError: it is damaged.
    """
    try:
        return from_bytes(text)
    except DamagedError as error:
        raise errors.UsageError(f"the log of the run {name!r} is damaged: {error}.") from None


def from_bytes(data: bytes) -> Log:
    """Return the log that ``as_bytes`` wrote.

    Raises:
        DamagedError: naming the part that is wrong, or saying that it was changed after it was written.
    """
    try:
        field, (text, _, found) = Field(parse(data.decode())), data.rpartition(_CHECKSUM)
        # Logs that were saved before there were checksums have none.
        if field.get("checksum").value is not None and found != _checksum(text) + b'"}':
            raise DamagedError("it was changed after it was saved, since its checksum is another one")
        return from_json(field)
    except DamagedError:
        raise
    except Exception as error:  # of whatever class a part of the wrong shape brings about
        raise DamagedError(f"the log has a part of the wrong shape ({said(error)})") from None


def from_json(field: Field) -> Log:
    """Return the log that ``to_json`` returned.

    Raises:
        DamagedError: naming the part that is wrong.
    """
    reader = _RowReader(field["objects"])
    snapshot = reader.read(field["snapshot"].value)
    noted = []
    for row in field["entries"].rows():
        now, event, digest = row.rows()
        noted.append((now.number(-1e300), reader.read(event.value), digest.text()))
    why_not = field["why_not"].text()
    if not why_not and not is_built_in(snapshot.policy):
        why_not = "its policy is a function of a user's, which a file does not hold"
    # Files from before these were counted have none.
    missing, before = (0 if (one := field.get(name)).value is None else one.whole() for name in ("missing", "before"))
    return Log(Snapshot.of(snapshot), noted, why_not, missing, before)


class _RowWriter:
    """Writes objects as rows of a table; a reference to one is ``[number]``, whatever else is no list is itself."""

    def __init__(self) -> None:
        self._numbers: dict[int, int] = {}
        self._found: list[Any] = []
        """All objects by number; kept, so that no other gets the identity of one that was written."""

    def write(self, value: Any) -> Any:
        if value is None or type(value) in (bool, int, str):
            return value
        # JSON has no infinities and no NaN.
        if type(value) is float:
            return value if abs(value) < float("inf") else {"float": repr(value)}
        # By identity: arrays of buffers, plans and calls are shared, and must be shared again after reading.
        number = self._numbers.get(id(value))
        if number is None:
            number = self._numbers[id(value)] = len(self._found)
            self._found.append(value)
        return [number]

    def rows(self) -> list[Any]:
        """Return the rows of all objects that were written, and of all that these refer to."""
        # One after another, since a call refers to the next one: one within the other would be too deep for Python.
        return [self._row(value) for value in self._found]

    def _row(self, value: Any) -> list[Any]:
        kind = type(value)
        if kind in _TABLES.values():
            factory = getattr(value, "default_factory", None)
            items = [[self.write(key), self.write(one)] for key, one in value.items()]
            return ["table", kind.__name__, items, factory.__name__ if factory else ""]
        if kind in _LISTS:
            return [kind.__name__, [self.write(one) for one in value]]
        if kind is slice:
            return ["slice", [value.start, value.stop, value.step]]
        if isinstance(value, types.FunctionType):
            # A user's function may have the module and name of a built-in policy: it is compared, not its name.
            module = value.__module__ if value in _RESTORED else ""
            return ["function", module, value.__qualname__]
        if isinstance(value, Exception):
            return ["error", kind.__name__, [str(one) for one in value.args]]
        # Only classes of the list: nothing else that a user's objects refer to may get into a file.
        if kind.__module__ not in _MODULES:
            raise TypeError(f"a log cannot hold a {kind.__module__}.{kind.__qualname__}")
        if isinstance(value, tuple):  # a named one
            return ["object", kind.__module__, kind.__qualname__, [[None, self.write(one)] for one in value]]
        return ["object", kind.__module__, kind.__qualname__,
                [[name, self.write(one)] for name, one in _attributes(value)]]  # fmt: skip


def _attributes(value: Any) -> list[tuple[str, Any]]:
    """Return what an object consists of: the fields of what cannot change, all that others hold."""
    if _is_frozen(type(value)):
        names = [one.name for one in fields(value)]
    else:
        names = list(getattr(value, "__dict__", {}))
        for kind in type(value).__mro__:
            slots = getattr(kind, "__slots__", ())
            names += [name for name in ([slots] if isinstance(slots, str) else slots) if not name.startswith("__")]
    return [(name, getattr(value, name)) for name in dict.fromkeys(names) if hasattr(value, name)]


def _is_frozen(kind: type) -> bool:
    return bool(getattr(getattr(kind, "__dataclass_params__", None), "frozen", False))


class _RowReader:
    """Reads rows back: what can change is made empty and filled later, since a call refers to the next one."""

    def __init__(self, table: Field):
        self._table, self._made = [row.value for row in table.rows()], dict[int, Any]()
        self._left: list[Callable[[], None]] = []

    def read(self, value: Any) -> Any:
        """Return what a written value stands for, whole."""
        made = self._part(value)
        while self._left:
            # Parts of parts in a list, not by recursion: a call refers to the next one, thousands deep.
            self._left.pop()()
        return made

    def _part(self, value: Any) -> Any:
        if isinstance(value, dict):
            return float(str(value.get("float")))
        if not isinstance(value, list):
            return value
        (number,) = value
        if number not in self._made:
            kind, *rest = self._table[number]
            _KINDS[kind](self, number, *rest)
        return self._made[number]

    def _list(self, number: int, parts: list[Any]) -> None:
        made = self._made[number] = list[Any]()
        self._left.append(lambda: made.extend(map(self._part, parts)))

    def _deque(self, number: int, parts: list[Any]) -> None:
        made = self._made[number] = deque[Any]()
        self._left.append(lambda: made.extend(map(self._part, parts)))

    def _set(self, number: int, parts: list[Any]) -> None:
        made = self._made[number] = set[Any]()
        self._left.append(lambda: made.update(map(self._part, parts)))

    def _tuple(self, number: int, parts: list[Any]) -> None:
        self._made[number] = tuple(map(self._part, parts))

    def _frozenset(self, number: int, parts: list[Any]) -> None:
        self._made[number] = frozenset(map(self._part, parts))

    def _slice(self, number: int, parts: list[Any]) -> None:
        self._made[number] = slice(*parts)

    def _dict(self, number: int, kind: str, items: list[Any], factory: str) -> None:
        # The factory by a name from a table, never by what the file says.
        made = self._made[number] = defaultdict(_FACTORIES[factory]) if kind == "defaultdict" else _TABLES[kind]()
        self._left.append(lambda: made.update({self._part(key): self._part(value) for key, value in items}))

    def _function(self, number: int, module: str, name: str) -> None:
        self._made[number] = _FUNCTIONS.get((module, name)) or _unknown(name)

    def _error(self, number: int, name: str, args: list[str]) -> None:
        kind = getattr(errors, name, None)
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            raise DamagedError(f"{name} is no error of pathways_nb")
        # Without ``__init__``, whose arguments differ from error to error.
        made = self._made[number] = kind.__new__(kind)
        made.args = tuple(args)

    def _object(self, number: int, module: str, name: str, parts: list[Any]) -> None:
        kind = _class(module, name)
        if issubclass(kind, tuple):
            self._made[number] = tuple.__new__(kind, [self._part(one) for _, one in parts])
            return
        # Without ``__init__``, which would compute and call; the attributes are data and come from the file.
        made = self._made[number] = object.__new__(kind)
        names = [_now_called(f"{module}.{name}.{attribute}") for attribute, _ in parts]
        for attribute in names:
            _check_data(kind, attribute)

        def fill() -> None:
            for attribute, (_, one) in zip(names, parts, strict=True):
                object.__setattr__(made, attribute, self._part(one))

        if _is_frozen(kind):  # at once: it may be a key, by its parts
            fill()
        else:
            self._left.append(fill)


_KINDS: dict[str, Callable[..., None]] = {
    "list": _RowReader._list, "deque": _RowReader._deque, "set": _RowReader._set, "tuple": _RowReader._tuple,
    "frozenset": _RowReader._frozenset, "slice": _RowReader._slice, "table": _RowReader._dict,
    "function": _RowReader._function, "error": _RowReader._error, "object": _RowReader._object,
}  # fmt: skip
"""How a row is read, by its first entry."""


def _unknown(name: str) -> Callable[..., Any]:
    """Return a function in place of a user's, of which a file has only the name."""

    def unknown(*_: object) -> None:
        raise errors.UsageError(f"{name} is a function of a user's, which a saved log does not hold.")

    unknown.__name__ = unknown.__qualname__ = name
    return unknown


def _now_called(path: str) -> str:
    """Return today's name of a class or an attribute that a log names by its path."""
    return _EARLIER.get(path, path).rpartition(".")[2]


def _class(module: str, name: str) -> type:
    """Return a class of data by its name: one that its module defines, not what it imports."""
    module = _EARLIER.get(module, module)
    name = _now_called(f"{module}.{name}")
    if module not in _MODULES:
        raise DamagedError(f"{module}.{name} is not of the controller")
    # ``vars`` and not ``getattr``: no property and no ``__getattr__`` of a module may run. The module is one of the
    # list.
    found = vars(importlib.import_module(module)).get(name)
    if not isinstance(found, type) or found.__module__ != module:
        raise DamagedError(f"there is no class {module}.{name}")
    return found


_DATA = (types.MemberDescriptorType, cached_property)
"""What a class has under the name of an attribute that its objects hold themselves."""


def _check_data(kind: type, name: object) -> None:
    """Check that an attribute is data: a method in its place would be called.

    Raises:
        DamagedError: it is not.
    """
    held = {one.name for one in fields(kind)} if is_dataclass(kind) else set[str]()
    if isinstance(name, str) and name.isidentifier() and not name.startswith("__"):
        of_class = inspect.getattr_static(kind, name, None)
        if name in held or of_class is None or isinstance(of_class, _DATA):
            return
    raise DamagedError(f"{kind.__qualname__} has no data {shortened(name)}")
