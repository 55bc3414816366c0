"""Writes a random program about memory: places on the same devices, values that are put, kept, passed on and donated.

Its functions and what they call come from a shelf, so that many texts share what is compiled; what is random is which
of them follow each other on which values, how often, and what is fetched, loose, or gathered in between.
"""

from __future__ import annotations

import random

MEMORY = 16_000
"""Bytes of a device: less than what a loop of calls would hold, so that they wait for each other."""
PLACES = {
    "whole": "4, island=0", "again": "4, island=0", "half": "2, island=0", "rest": "2, island=0",
    "three": "3, island=0", "other": "3, island=0", "single": "1, island=0", "far": "4, island=1",
}  # fmt: skip
"""Those of island 0 share its four devices: the same, nested, and overlapping ones."""
SHELF = 25
"""Functions on a shelf."""
_BODIES = {1: ("tanh", "silu", "transposed", "rms_norm"), 2: ("chosen", "cross", "joined")}
"""By number of matrices: those that may be repeated often, and neither grow without bounds nor enlarge rounding."""
_SPECS = ('pw.P("x")', 'pw.P("x")', 'pw.P(None, "x")', "pw.P()", "None")


class DonationWriter:
    """The text of one program.

    Args:
        seed: what is random about it.
        shelf: of the functions.
    """

    transform = "donation"

    def __init__(self, seed: int, shelf: int | None = None):
        self.random = random.Random(seed)
        self.shelf = _Shelf(shelf or 0)
        self.live: list[str] = []
        """Variables whose value was not donated."""
        self.made = 0
        self.lines: list[str] = []

    def text(self) -> str:
        """All of it."""
        for _ in range(2):
            self._put()
        steps = [self._put, self._call, self._call, self._call, self._loose, self._loose, self._loop, self._get,
                 self._gather, self._drop]  # fmt: skip
        for _ in range(self.random.randint(5, 12)):
            self.random.choice(steps)()
        result = f"result = pw.get([{', '.join(self.live)}])"
        return "\n".join([*self.shelf.needed("\n".join(self.lines)), "", "", *self.lines, result]) + "\n"

    def _new(self) -> str:
        self.made += 1
        return f"w{self.made}"

    def _value(self) -> str:
        """A value that is read, as it is, from the user's NumPy, or as the array on its devices."""
        if self.live and self.random.random() < 0.8:
            name = self.random.choice(self.live)
            return f"raw({name})" if self.random.random() < 0.1 else name
        return self.random.choice("xyz")

    def _given(self, name: str, indent: str = "") -> None:
        """A call, whose donated arguments nobody reads any more."""
        count, donated, returned = self.shelf.functions[name]
        given: list[str] = []
        for at in range(count):
            value = self._value()
            while value in given and not value.startswith("raw") and (at in donated or given.index(value) in donated):
                value = self.random.choice("xyz") if self.random.random() < 0.3 else self._value()
            given.append(value)
        for value in [given[at] for at in donated]:
            if value in self.live:
                self.live.remove(value)
        made = [self._new() for _ in range(returned)]
        self.lines.append(f"{indent}{', '.join(made)}{',' * (name[0] == 'f')} = {name}({', '.join(given)})")
        self.live += made

    def _put(self) -> None:
        place, spec, name = self.random.choice(list(PLACES)), self.random.choice(_SPECS), self._new()
        spec = f", shardings={spec}" if spec != "None" else ""
        self.lines.append(f"{name} = pw.put({self._value()}, on={place}{spec})")
        self.live.append(name)

    def _call(self) -> None:
        self._given(self.random.choice([name for name in self.shelf.functions if name[0] == "f"]))

    def _loose(self) -> None:
        self._given(self.random.choice([name for name in self.shelf.functions if name[0] == "c"]))

    def _loop(self) -> None:
        """Calls of which each donates what the one before made, or of which only the last one's result is kept."""
        ones = [n for n, (count, _, returned) in self.shelf.functions.items() if (count, returned) == (1, 1)]
        name, times = self.random.choice(ones), self.random.choice((3, 10, 30))
        if not self.live:
            return
        value = self.random.choice(self.live)
        donates = bool(self.shelf.functions[name][1])
        to = value if donates or self.random.random() < 0.5 else self._new()
        comma = "," * (name[0] == "f")
        self.lines += [f"for _ in range({times}):", f"    {to}{comma} = {name}({value})"]
        if to != value:
            self.live.append(to)

    def _get(self) -> None:
        if self.live:
            self.lines.append(f"pw.get({self.random.choice(self.live)})")

    def _gather(self) -> None:
        """Loose calls that are dispatched as one program."""
        self.lines.append("with pw.record():")
        for _ in range(self.random.randint(2, 4)):
            self._given(self.random.choice([name for name in self.shelf.functions if name[0] == "c"]), "    ")

    def _drop(self) -> None:
        if len(self.live) > 6:
            self.lines += [f"del {name}" for name in self.live[:3]]
            del self.live[:3]


class _Shelf:
    """Computations on all places, of which some donate what they read, and functions of them."""

    def __init__(self, seed: int):
        self.random = random.Random(seed)
        self.blocks = {name: f"{name} = pw.virtual_slice({asked})" for name, asked in PLACES.items()}
        self.functions: dict[str, tuple[int, tuple[int, ...], int]] = {}
        """How many matrices each takes, which of them it donates, and how many it returns."""
        for place in [*PLACES, *PLACES, "whole", "again", "whole", "again"]:
            self._computation(place)
        computations = list(self.functions)
        for _ in range(SHELF):
            self._function(computations)

    def needed(self, text: str) -> list[str]:
        """The definitions that a text needs, and those that these need."""
        found: set[str] = set()
        wanted = _words(text) & self.blocks.keys()
        while wanted:
            found |= wanted
            wanted = set().union(*(_words(self.blocks[name]) for name in wanted)) & self.blocks.keys() - found
        return [block for name, block in self.blocks.items() if name in found]

    def _computation(self, place: str) -> None:
        name, count = f"c{len(self.functions)}", self.random.choice((1, 1, 2))
        taken = ", ".join("xy"[:count])
        donated = (0,) if self.random.random() < 0.6 else ()
        # Only a result in the same layout can lie in the memory of what it is made of.
        spec = self.random.choice(_SPECS)
        out = spec if self.random.random() < 0.7 else self.random.choice(_SPECS)
        body = f"{self.random.choice(_BODIES[count])}({taken})"
        self.blocks[name] = (
            f"{name} = pw.jit(lambda {taken}: {body}, on={place}, in_shardings={spec}, out_shardings={out}, "
            f"donate_argnums={donated})"
        )
        self.functions[name] = count, donated, 1

    def _function(self, computations: list[str]) -> None:
        name, count = f"f{len(self.functions)}", self.random.randint(1, 3)
        values = list("pqr"[:count])
        lines = [f"def {name}({', '.join(values)}):"]
        for number in range(self.random.randint(2, 6)):
            chosen = self.random.choice(computations)
            # The newest most often: what was just donated is read again.
            given = [self.random.choice(values[-3:]) for _ in range(self.functions[chosen][0])]
            call = f"{chosen}({', '.join(given)})"
            if self.random.random() < 0.2:
                call += self.random.choice((" * 0.7 + 0.1", f" + {self.random.choice(values)} * 0.5"))
            lines.append(f"    v{number} = {call}")
            values.append(f"v{number}")
        returned = self.random.sample(values, self.random.randint(1, min(3, len(values))))
        if values[-1] not in returned:
            returned[-1] = values[-1]
        donated = tuple(at for at in range(count) if self.random.random() < 0.5)
        lines += [f"    return {', '.join(returned)},", f"{name} = pw.program({name}, donate_argnums={donated})"]
        self.blocks[name] = "\n".join(lines)
        self.functions[name] = count, donated, len(returned)


def _words(text: str) -> set[str]:
    return set("".join(c if c.isalnum() else " " for c in text).split())
