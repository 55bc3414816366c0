"""``FsdpPlan``: which parameters are gathered and reduced together, and how early.

Plans are data: they can be printed, edited, saved and compared.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pathways_nb.errors import PlanError, did_you_mean
from pathways_nb.parallel.fsdp.passes.pass_registry import Value
from pathways_nb.parallel.fsdp.passes.plan_passes import PassChoice
from pathways_nb.util import json_text
from pathways_nb.util.json_forms import Form, list_of, optional, record
from pathways_nb.util.json_text import DamagedError, Field
from pathways_nb.util.words import counted

FORMAT = 1
"""Version of the files that ``save`` writes."""


@dataclass(frozen=True)
class Bucket:
    """Parameters that one collective carries.

    Args:
        params: their names.
        keep: whether they stay gathered from the forward to the backward pass.
    """

    params: tuple[str, ...]
    keep: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.params, str):
            raise PlanError(f"Bucket({self.params!r}): give a tuple of names, such as ({self.params!r},).")


@dataclass(frozen=True)
class FsdpPlan:
    """How a step of sharded data parallelism gathers and reduces.

    Args:
        buckets: of the forward pass; each parameter of the model is in exactly one.
        backward: the buckets of the backward pass, in which parameters are gathered again and gradients are reduced;
            ``None`` for the same as in the forward pass.
        prefetch: how many gathers are under way before their turn.
        name: how it was made.
        passes: passes of yours that it runs beside those of every step; see ``register_pass`` and ``with_pass``.
    """

    buckets: tuple[Bucket, ...]
    backward: tuple[Bucket, ...] | None = None
    prefetch: int = 1
    name: str = "own"
    passes: tuple[PassChoice, ...] = ()

    @property
    def reduced(self) -> tuple[Bucket, ...]:
        """The buckets of the backward pass."""
        return self.buckets if self.backward is None else self.backward

    @property
    def kept(self) -> frozenset[str]:
        """The names of parameters that stay gathered."""
        return frozenset(name for bucket in self.buckets if bucket.keep for name in bucket.params)

    def keeping(self, keep: Callable[[Bucket], bool] | bool) -> FsdpPlan:
        """Return the plan in which ``keep(bucket)`` says of each bucket whether it stays gathered."""
        chosen = keep if callable(keep) else lambda _: bool(keep)
        return replace(self, buckets=tuple(replace(bucket, keep=chosen(bucket)) for bucket in self.buckets))

    def with_pass(self, name: str, /, **settings: Value) -> FsdpPlan:
        """Return the plan with a pass of yours; one that it has already gets these settings.

        Args:
            name: with which the pass was registered.
            **settings: of the pass; its defaults for the others.

        Raises:
            PlanError: there is no such pass or setting.
        """
        return replace(self, passes=(*self.without_pass(name).passes, PassChoice.of(name, settings)))

    def without_pass(self, name: str) -> FsdpPlan:
        """Return the plan without a pass of yours."""
        return replace(self, passes=tuple(one for one in self.passes if one.name != name))

    def check(self, names: Sequence[str]) -> None:
        """Check that the plan fits a model with parameters of these names.

        Raises:
            PlanError: naming a parameter that is in no bucket or in two, or that the model does not have, or a pass
                that is not registered.
        """
        for one in self.passes:
            one.check()
        for where, buckets in (("forward", self.buckets), ("backward", self.reduced)):
            _check(where, buckets, names)
        if self.prefetch < 0:
            raise PlanError(f"the plan's prefetch={self.prefetch} is negative; 0 begins each gather when it is needed.")

    def save(self, path: str | Path) -> None:
        """Save the plan as JSON."""
        Path(path).write_text(json.dumps({"format": FORMAT, **_PLAN.write(self)}, indent=1) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> FsdpPlan:
        """Return a plan that ``save`` wrote.

        Raises:
            PlanError: the file is no plan.
            FileNotFoundError: there is no such file.
        """
        try:
            found = Field(json_text.read(Path(path)))
            found["format"].whole(FORMAT, FORMAT)
            return _PLAN.read(found)
        except DamagedError as error:
            raise PlanError(f"{path} is no plan that FsdpPlan.save wrote: {error}.") from None

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        printer.text(str(self))

    def __str__(self) -> str:
        rows = [f"{self.name}: {counted(len(self.buckets), 'bucket')}, prefetch {self.prefetch}"]
        rows += _rows(self.buckets)
        if self.backward is not None:
            rows += [f"backward: {counted(len(self.backward), 'bucket')}", *_rows(self.backward)]
        rows += [f"pass {one}" for one in self.passes]
        return "\n".join(rows)


def plan_of(groups: Iterable[Iterable[str]], **options: Any) -> FsdpPlan:
    """Return a plan with a bucket for each group of names."""
    return FsdpPlan(tuple(Bucket(tuple(group)) for group in groups), **options)


def _settings(found: Field) -> tuple[tuple[str, Value], ...]:
    """Return the settings of a pass that a file names."""
    for name, value in found.table().items():
        if not isinstance(value, Value) or (isinstance(value, float) and not math.isfinite(value)):
            raise DamagedError(f"{found.where}.{name} is {json_text.shortened(value)}, no value of a setting")
    return tuple(found.value.items())


_BUCKETS = list_of(record(Bucket, only=(), params=Field.texts, keep=Field.truth))
_PASSES = list_of(record(PassChoice, only=(), name=Field.text, settings=Form(_settings, dict)))
_PLAN = record(
    FsdpPlan,
    only=("format",),
    buckets=_BUCKETS,
    backward=optional(_BUCKETS),
    prefetch=Field.whole,
    name=Field.text,
    passes=optional(_PASSES, (), may_lack=True),  # files from before passes were saved have none
)
"""The form of a plan's file; it is strict, as people edit plans."""


def _check(where: str, buckets: Sequence[Bucket], names: Sequence[str]) -> None:
    seen, known = dict[str, int](), set(names)
    for number, bucket in enumerate(buckets):
        for name in bucket.params:
            if name not in known:
                raise PlanError(
                    f"the {where} plan's bucket {number} names {name!r}, which the model does not have."
                    f"{did_you_mean(name, names)} Without plan=, fsdp makes one for this model."
                )
            if name in seen:
                raise PlanError(
                    f"parameter {name} is in the {where} plan's buckets {seen[name]} and {number}; it must be in one."
                )
            seen[name] = number
    missing = [name for name in names if name not in seen]
    if missing:
        more = f" and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise PlanError(
            f"parameter {missing[0]}{more} of the model is in no bucket of the {where} plan. Add a bucket for it."
        )


def _rows(buckets: Sequence[Bucket]) -> Iterator[str]:
    for number, bucket in enumerate(buckets):
        first, *rest = bucket.params or ("",)
        more = f" … {rest[-1]} ({counted(len(bucket.params), 'parameter')})" if rest else ""
        yield f"  {number:3d}  {first}{more}{'  kept' if bucket.keep else ''}"
