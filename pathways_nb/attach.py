"""``pw.attach``: choose devices and make their controller the current one. Devices are made when first needed."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, Literal

from pathways_nb import current
from pathways_nb.attached import Controller, Specification
from pathways_nb.backends import islands as islands_module
from pathways_nb.controller.policies import Policy, policy_of
from pathways_nb.errors import PlaceError, UsageError
from pathways_nb.run import runs

KINDS = ("auto", "cpu", "gpu", "tpu")


def attach(
    kind: Literal["auto", "cpu", "gpu", "tpu"] = "auto",
    *,
    islands: int | Sequence[Sequence[int]] | None = None,
    devices_per_island: int | None = None,
    dispatch: Literal["parallel", "sequential"] = "parallel",
    pin: bool = True,
    policy: str | Policy = "stride",
) -> Controller:
    """Attach devices and make their controller the current one.

    Args:
        kind: ``"cpu"`` makes virtual devices, ``"gpu"`` and ``"tpu"`` take what JAX shows, ``"auto"`` takes
            accelerators if there are any and says what it chose.
        islands: how many (default 2 on CPU), or on accelerators a list of device positions for each.
        devices_per_island: on CPU, default 4.
        dispatch: ``"parallel"`` (asynchronous) or ``"sequential"``: steps go out one after another (Pathways, Fig. 4).
        pin: give each CPU island cores of its own.
        policy: which program's next gang goes first: ``"stride"`` (clients by their shares), ``"fifo"``,
            ``"priority"``, ``"shortest"``, or a function ``policy(ready, state) -> gang``.

    Raises:
        PlaceError: the numbers do not fit what there is. UsageError: an unknown kind or mode of dispatch.
    """
    before = current.peek()
    _check_choice("kind", kind, KINDS)
    _check_choice("dispatch", dispatch, ("parallel", "sequential"))
    policy_of(policy)
    found, devices = islands_module.accelerators() if kind != "cpu" else (None, [])
    chosen = _choose(kind, found)
    if chosen == "cpu":
        count = 2 if islands is None else islands
        each = 4 if devices_per_island is None else devices_per_island
        islands_module.check_counts(count, each)
        specification = Specification(chosen, count, each, dispatch, pin, policy)
    else:
        specification = Specification(chosen, _hashable(islands), devices_per_island, dispatch, pin, policy)
    if before is not None and before.specification == specification:
        return before
    made = _controller(specification, islands, devices)
    current.replace(made)
    if kind == "auto":
        print(f"attached {chosen}: {made.size_text}; {_other_choice(found)}")
    return made


def _controller(specification: Specification, islands: Any, devices: list[Any]) -> Controller:
    if specification.kind != "cpu":
        attachment = islands_module.attach_accelerators(specification.kind, devices, islands)  # type: ignore[arg-type]
        counts = tuple(len(island.devices) for island in attachment.islands)
        return Controller(specification, lambda: attachment, counts)
    count, each = specification.islands, specification.devices_per_island or 0
    return Controller(specification, lambda: islands_module.attach_cpu(count, each, specification.pin), (each,) * count)


def _choose(kind: str, found: str | None) -> str:
    if kind == "auto":
        return found or "cpu"
    if kind in ("gpu", "tpu") and found != kind:
        raise UsageError(
            f'attach("{kind}"): JAX sees {"no accelerator" if found is None else f"a {found}"} here. '
            f'Use pw.attach("{found or "cpu"}") or pw.attach("auto").'
        )
    return kind


def _other_choice(found: str | None) -> str:
    if found:
        return 'for virtual CPU devices: pw.attach("cpu")'
    return 'for other numbers: pw.attach("cpu", islands=2, devices_per_island=8)'


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    if value not in choices:
        raise UsageError(f"attach({name}={value!r}): choose one of {', '.join(map(repr, choices))}.")


def _hashable(islands: Any) -> Any:
    if islands is None or isinstance(islands, int):
        return islands
    try:
        return tuple(tuple(map(operator.index, group)) for group in islands)
    except TypeError:
        raise PlaceError(
            f"attach(islands={islands!r}): give a whole number, or on accelerators a list of device positions each."
        ) from None


def reset() -> None:
    """Free buffers, programs and records of the current controller without a kernel restart."""
    runs.clear()
    controller = current.peek()
    if controller is not None:
        controller.reset()
