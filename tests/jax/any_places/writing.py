"""Writes a random program: places, computations, a function over them, what JAX makes of it, and its call."""

from __future__ import annotations

import random

from tests.jax.any_places import bodies

PLACES = {
    "four": ("4", ("x",), 4, 0),
    "square": ('(2, 2), axes=("a", "b")', ("a", "b"), 4, 1),
    "two": ("2", ("x",), 2, 2),
    "one": ("1", ("x",), 1, 0),
    "thin": ('(4, 1), axes=("c", "d")', ("c", "d"), 4, 1),
    "three": ("3", ("x",), 3, 2),
}
"""How each is asked for, its axes, its devices, and the island that it most often is on."""

_ON_VALUES = {
    "call": "values",
    "jvp of values": "lambda x, y, z: jax.jvp(values, (x, y, z), (y, z, x))",
    "vjp": "lambda x, y, z: (lambda out, pull: pull(out))(*jax.vjp(values, x, y, z))",
    "linearize": "lambda x, y, z: (lambda out, push: (out, push(z, x, y)))(*jax.linearize(values, x, y, z))",
    "call of results": "lambda x, y, z: values(x, y, z)[0] + x * 0.5",
    "vmap": "lambda x, y, z: jax.vmap(values)(*pairs(x, y, z))",
    "vmap over one": "lambda x, y, z: jax.vmap(values, (0, None, None))(*pairs(x), y, z)",
}
_ON_LOSS = {
    "grad": "jax.grad(loss, argnums=(0, 1, 2))",
    "value_and_grad": "jax.value_and_grad(loss, argnums=(0, 2))",
    "jvp": "lambda x, y, z: jax.jvp(loss, (x, y, z), (y, z, x))",
    "vmap of grad": "lambda x, y, z: jax.vmap(jax.grad(loss))(*pairs(x, y, z))",
    "checkpoint": "jax.grad(jax.checkpoint(loss), argnums=(0, 1))",
    "jit": "jax.jit(jax.value_and_grad(loss))",
    "hessian times vector": "lambda x, y, z: jax.jvp(jax.grad(loss), (x, y, z), (y, z, x))",
    "grad of grad": "jax.grad(lambda x, y, z: sum((g * g).sum() for g in jax.grad(loss, (0, 1))(x, y, z)), (0, 1))",
}
_FORWARD = {"jvp of values", "linearize", "jvp", "hessian times vector"}
"""Those for which JAX itself needs a forward-mode derivative, which ``custom_vjp`` has not."""
_OPTIMIZERS = (
    "optax.adam(1e-2)", "optax.adafactor(1e-2)", "optax.sgd(1e-2, momentum=0.9)",
    "optax.chain(optax.clip_by_global_norm(0.1), optax.adamw(1e-2))",
)  # fmt: skip


class Writer:
    """The text of one program; ``transform`` is what is done with its function.

    Args:
        seed: what is random about it.
        shelf: if given, the computations are some of those few that this other seed determines, so that many programs
            share what is compiled; else they are the program's own.
    """

    def __init__(self, seed: int, shelf: int | None = None):
        self.random, self.shelf = random.Random(seed), shelf
        self.transform = self.random.choice([*_ON_VALUES, *_ON_LOSS, *_ON_LOSS, "train", "train", "train"])
        self.forward = self.transform in _FORWARD
        self.computations: dict[str, int] = {}
        """How many matrices each takes."""
        self.values = ["x", "y", "z"]
        self.used_places: list[str] = []
        self.head: list[str] = []
        self.body: list[str] = []

    def text(self) -> str:
        """All of it."""
        if self.shelf is None:
            self._make(self.random.randint(2, 4), self.random.randint(2, 7))
        else:
            self._take(self.random.randint(2, 3))
        for name in list(self.computations):
            self._use(name)
        if self.random.random() < 0.4:
            self._use(self.random.choice(list(self.computations)))
        return "\n".join([*self.head, "", "", *self._function(), "", "", *self._call()]) + "\n"

    def pick(self, *choices: str) -> str:
        """One of them."""
        return self.random.choice(choices)

    def chance(self, probability: float) -> bool:
        """Whether something comes about."""
        return self.random.random() < probability

    def _make(self, places: int, computations: int) -> None:
        for _ in range(places):
            self._place()
        for _ in range(computations):
            self._computation()

    def _take(self, computations: int) -> None:
        shelf = Writer(self.shelf or 0)
        shelf.forward = True
        for name in PLACES:
            shelf._place(name)
        for name in PLACES:
            shelf._computation(name), shelf._computation(name)
        taken = sorted(self.random.sample(list(shelf.computations), computations))
        self.computations = {name: shelf.computations[name] for name in taken}
        self.used_places = shelf.used_places
        computed = [line for line in shelf.head if line.split(" = ")[0].removeprefix("_") in taken]
        used = [name for name in PLACES if any(f"on={name}," in f"{line[:-1]}," for line in computed)]
        self.head = [line for line in shelf.head if line.split(" = ")[0] in used] + computed

    def _place(self, name: str = "") -> None:
        name = name or self.random.choice(list(PLACES))
        if name not in self.used_places:
            self.used_places.append(name)
            asked, _, _, island = PLACES[name]
            island = self.random.randrange(3) if self.chance(0.2) else island
            self.head.append(f"{name} = pw.virtual_slice({asked}, island={island})")

    def _spec(self, place: str, empty: float = 0.3) -> str:
        """A layout of a matrix: each axis splits one of its dimensions or none, in any order."""
        if self.chance(empty):
            return "pw.P()"
        axes = list(PLACES[place][1])
        self.random.shuffle(axes)
        dims: list[list[str]] = [[], []]
        for axis in axes:
            if self.chance(0.85):
                self.random.choice(dims).append(f'"{axis}"')
        entries = [("None" if not d else d[0] if len(d) == 1 else f"({', '.join(d)})") for d in dims]
        return f"pw.P({', '.join(entries if dims[1] else entries[:1])})"

    def _computation(self, place: str = "") -> None:
        place, name = place or self.random.choice(self.used_places), f"c{len(self.computations)}"
        if self.chance(0.25):
            self.computations[name] = 1
            self.head.append(f"{name} = {self._per_shard(place)}")
            return
        count = self.computations[name] = self.random.choice((1, 1, 2))
        options = [f"on={place}"]
        if self.chance(0.7):
            specs = [self.pick("None", self._spec(place), self._spec(place)) for _ in range(count)]
            one = count == 1 or self.chance(0.2)
            options.append(f"in_shardings={specs[0] if one else '(' + ', '.join(specs) + ')'}")
        if self.chance(0.5):
            options.append(f"out_shardings={self._spec(place)}")
        if self.chance(0.15):  # several outputs, whole numbers among them
            options = [option.replace("out_shardings=", "out_shardings={'all': ") for option in options]
            options[-1] += ", 'ids': None, 'mean': None}" if "{" in options[-1] else ""
            self.head.append(f"_{name} = pw.jit(told({self._whole(place, count)}), {', '.join(options)})")
            self.head.append(f"{name} = heard(_{name})")
            return
        self.head.append(f"{name} = pw.jit({self._whole(place, count)}, {', '.join(options)})")

    def _per_shard(self, place: str) -> str:
        spec = self._spec(place, 0.15)
        axes = [axis for axis in PLACES[place][1] if f'"{axis}"' in spec]
        kinds = bodies.SHARED if axes else bodies.EVEN
        inner = "x"
        for _ in range(self.random.randint(1, 2)):
            axis = self.random.choice(axes or PLACES[place][1])
            inner = f'{self.random.choice(kinds).__name__}({inner}, "{axis}")'
        return f"pw.shard_map(lambda x: {inner}, on={place}, in_specs={spec}, out_specs={spec})"

    def _whole(self, place: str, count: int) -> str:
        """A function of whole matrices."""
        if count == 1 and self.chance(0.3):
            return self._one(place)
        taken = ", ".join("xy"[:count])
        inner = f"{self.random.choice(bodies.TWO).__name__}(x, y)" if count == 2 else "x"
        for _ in range(self.random.randint(1, 2) if count == 1 else self.random.randint(0, 1)):
            inner = f"{self._one(place)}({inner})"
        if self.chance(0.3):
            inner = f"constrain({inner}, {self._spec(place)})"
        return f"lambda {taken}: {inner}"

    def _one(self, place: str) -> str:
        """A function of one matrix."""
        kinds = [kind for kind in bodies.ONE if not (self.forward and kind in bodies.NO_FORWARD_MODE)]
        name = self.random.choice(kinds).__name__
        if self.chance(0.1) and not self.forward:
            return f"steered(lambda t: constrain(t, {self._spec(place)}))"
        return f"{self.pick('jax.checkpoint', 'jax.jit')}({name})" if self.chance(0.2) else name

    def _use(self, name: str) -> None:
        """A statement that calls a computation on some of the values."""
        used = f"{name}({', '.join(self._value() for _ in range(self.computations[name]))})"
        if self.chance(0.35):
            used = self._wrapped(name)
        made = f"v{len(self.values) - 3}"
        if self.chance(0.3):
            used += self.pick(" * 0.7 + 0.1", f" + {self._value()} * 0.5", f" - jnp.tanh({self._value()})")
        elif self.chance(0.15):
            used = f"{self.pick('jax.nn.softmax', 'jnp.sin', 'silu', 'layer_norm')}({used})"
        self.body.append(f"{made} = {used}")
        self.values.append(made)

    def _value(self) -> str:
        newest = self.values[-3:]
        return self.random.choice(newest if self.chance(0.7) else self.values)

    def _wrapped(self, name: str) -> str:
        """A call, or two, within something else of JAX's or of the user's."""
        other = self.random.choice(list(self.computations))
        inner = self._applied(name, self._applied(other, "t") if self.chance(0.4) else "t")
        fn, value = f"lambda t: {inner}", self._value()
        ways = [
            f"jax.checkpoint({fn})({value})",
            f"jax.jit({fn})({value})",
            f"jax.vmap({fn})(*pairs({value})).sum(0) * 0.5",
            f"pw.program({fn})({value})",
            f"pw.program(jax.vmap({fn}))(*pairs({value}))[1]",
            f"jax.grad(lambda t: (({inner}) ** 2).mean())({value}) * 20",
            f"sum(({fn})({value} * k) for k in (1, 0.5))",
        ]
        if not self.forward:  # a custom_vjp may close over no value
            alone = f"{name}({', '.join('t' * self.computations[name])})"
            ways.append(f"reversed_twice(lambda t: {alone})({value})")
        if self.transform != "grad of grad" and not self.forward:
            ways.append(f"jax.jvp({fn}, ({value},), ({self._value()},))[1]")
        wanted = self.random.choice(ways)
        # A derivative in forward mode asks for one everywhere beneath it.
        return wanted if "jax.jvp" not in wanted or not self._has_own_rule() else ways[0]

    def _has_own_rule(self) -> bool:
        return any(word in line for line in self.head for word in ("steered", "clipped"))

    def _applied(self, name: str, value: str) -> str:
        return f"{name}({', '.join([value, self._value()][: self.computations[name]])})"

    def _function(self) -> list[str]:
        last = self.values[-1]
        more = [self._value() for _ in range(self.random.randint(0, 2))]
        returned = ", ".join(dict.fromkeys([last, *more]))
        losses = [f"jnp.mean({v} ** 2)" for v in dict.fromkeys([last, *more])]
        lines = ["def values(x, y, z):", *(f"    {line}" for line in self.body), f"    return {returned},"]
        lines += [
            "",
            "",
            "def loss(x, y, z):",
            f"    {returned}, = values(x, y, z)",
            f"    return {' + '.join(losses)}",
        ]
        return lines

    def _call(self) -> list[str]:
        fuse = f"fuse={self.chance(0.35)}"
        if self.transform != "train":
            fn = {**_ON_VALUES, **_ON_LOSS}[self.transform]
            given = "run(x, y, z), run(z, x, y), x" if self.transform == "call of results" else "x, y, z"
            return [f"run = pw.program({fn}, {fuse})", f"result = pw.get(run({given}))"]
        donated = self.pick("", ", donate_argnums=(0, 1)", ", donate_argnums=0")
        return [
            f"optimizer = {self.random.choice(_OPTIMIZERS)}", "", "",
            "def train(params, state):",
            "    value, gradients = jax.value_and_grad(lambda p: loss(*p))(params)",
            "    updates, state = optimizer.update(gradients, state, params)",
            "    return optax.apply_updates(params, updates), state, value", "", "",
            f"step = pw.program(train, {fuse}{donated})",
            "params, state = (x, y, z), optimizer.init((x, y, z))",
            "for _ in range(2):",
            "    params, state, value = step(params, state)",
            "result = pw.get((params, value))",
        ]  # fmt: skip
