"""Policies: which program's next gang is enqueued when several could be (Pathways, section 4.4).

A policy is a function ``policy(ready, state) -> gang``. It chooses between programs, never inside one: each program
offers only its next gang, whose producers are enqueued. So no policy can make the orders of two islands incompatible,
whatever it returns, and users may write their own.

``scheduler`` decides when a policy is asked and what it is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from pathways_nb.errors import PolicyError, UsageError, did_you_mean
from pathways_nb.plan.source_lines import describe, line_of
from pathways_nb.util.words import a_type_of, counted, visible


@dataclass(frozen=True, slots=True)
class ReadyGang:
    """A gang that could be enqueued now.

    Args:
        client: name of the client that called the program.
        program: name of the program.
        name: name of the node.
        devices: number of devices that it runs on.
        expected_seconds: how long it took before; ``None`` if it never ran.
        waiting_since: when its program was submitted, in seconds of the controller's clock.
        serial: number of its program, in order of submission.
    """

    client: str
    program: str
    name: str
    devices: int
    expected_seconds: float | None
    waiting_since: float
    serial: int


@dataclass(frozen=True, slots=True)
class PolicyState:
    """What a policy may read in addition to the gangs.

    Args:
        now: seconds of the controller's clock.
        device_seconds: of each client, used so far or enqueued.
        shares: of each client.
        priorities: of each client.
        passed: of each client, device-seconds over share, counted only while other clients wanted devices too. A client
            that comes, or returns from being idle, starts from the least of those that are active; one that was away
            for milliseconds only keeps what it left unused meanwhile. The client with the least is due next.
    """

    now: float
    device_seconds: Mapping[str, float]
    shares: Mapping[str, float]
    priorities: Mapping[str, float]
    passed: Mapping[str, float]


class PerClient(Mapping[str, float]):
    """A read-only mapping from each client's name to one field of its account.

    It reads the field when it is asked: a policy is asked for every gang while clients compete, and most policies read
    one field of few clients, so copying all fields would be wasted.

    Args:
        clients: accounts by name.
        name: the field.
    """

    def __init__(self, clients: Mapping[str, Any], name: str):
        self._clients, self._name = clients, name

    def __getitem__(self, client: str) -> float:
        value: float = getattr(self._clients[client], self._name)
        return value

    def __iter__(self) -> Iterator[str]:
        return iter(self._clients)

    def __len__(self) -> int:
        return len(self._clients)

    def __repr__(self) -> str:
        return repr(dict(self))


Policy = Callable[[Sequence[ReadyGang], PolicyState], ReadyGang]
Marked = TypeVar("Marked", bound=Policy)


def policy(keeps_order: bool = False, promises_shares: bool = False) -> Callable[[Marked], Marked]:
    """Return a decorator that says what a policy keeps, which makes it cheaper to ask.

    Args:
        keeps_order: it takes each client's programs in the order of their submission, whatever they are and take. So it
            is shown one gang of each client, and not asked at all while one client has programs.
        promises_shares: it divides devices by the clients' shares, so that records say what each client was promised.

    Raises:
        UsageError: it is written without parentheses, or given something other than a function that can be marked.
    """
    if callable(keeps_order):
        raise UsageError("policy: write @pw.policy(keeps_order=True), with parentheses.")

    def mark(choose: Marked) -> Marked:
        """Return the policy, marked."""
        if not callable(choose):
            raise UsageError(
                f"policy: {choose!r} is no function policy(ready, state); write @pw.policy(keeps_order=True)."
            )
        try:
            choose.keeps_order, choose.promises_shares = keeps_order, promises_shares  # type: ignore[attr-defined]
        except AttributeError:
            said = f"policy: {choose!r} cannot be marked"
            raise UsageError(f"{said}; wrap it in a function policy(ready, state).") from None
        return choose

    return mark


def keeps_order(choose: Policy) -> bool:
    """Return whether a policy says that it takes each client's programs in order of submission."""
    return getattr(choose, "keeps_order", False) is True


def promises_shares(choose: Policy) -> bool:
    """Return whether a policy says that it divides devices by the clients' shares."""
    return getattr(choose, "promises_shares", False) is True


@policy(keeps_order=True)
def fifo(ready: Sequence[ReadyGang], state: PolicyState) -> ReadyGang:
    """Return the gang of the program submitted first."""
    return min(ready, key=lambda gang: gang.serial)


@policy(keeps_order=True, promises_shares=True)
def stride(ready: Sequence[ReadyGang], state: PolicyState) -> ReadyGang:
    """Return the gang of the client that has had least of its share (Waldspurger and Weihl, 1995)."""
    return min(ready, key=lambda gang: (state.passed[gang.client], gang.serial))


@policy(keeps_order=True)
def priority(ready: Sequence[ReadyGang], state: PolicyState) -> ReadyGang:
    """Return the gang of the client with the highest priority; among equals, of the program submitted first."""
    return min(ready, key=lambda gang: (-state.priorities[gang.client], gang.serial))


def shortest(ready: Sequence[ReadyGang], state: PolicyState) -> ReadyGang:
    """Return the gang that is expected to end soonest; one that never ran goes first, to be measured."""
    return min(ready, key=lambda gang: (gang.expected_seconds or 0.0, gang.serial))


POLICIES: dict[str, Policy] = {"fifo": fifo, "stride": stride, "priority": priority, "shortest": shortest}


def is_built_in(choose: object) -> bool:
    """Return whether a policy is one of ``POLICIES``, not one that says it is equal to it."""
    return any(choose is one for one in POLICIES.values())


def policy_of(policy: str | Policy) -> Policy:
    """Return the policy of this name, or the user's own function.

    Args:
        policy: a name in ``POLICIES``, or a function ``policy(ready, state)``.

    Returns:
        A function ``policy(ready, state)``.

    Raises:
        UsageError: an unknown name, or not a function.
    """
    if isinstance(policy, str):
        if policy not in POLICIES:
            names = ", ".join(map(repr, POLICIES))
            raise UsageError(
                f"policy={policy!r}: choose one of {names}, or write a function policy(ready, state)."
                f"{did_you_mean(policy, POLICIES)}"
            )
        return POLICIES[policy]
    if not callable(policy):
        raise UsageError(f"policy={policy!r} is neither a name nor a function policy(ready, state).")
    if keeps_order(policy) and (later := _later_choice(policy)):
        raise UsageError(
            f"policy {name_of(policy)} ({_line(policy)}) says keeps_order=True, but of two programs of one client it "
            f"chose the later one where {later}. Leave keeps_order= out, or choose the smallest gang.serial of each."
        )
    return policy


def _later_choice(choose: Policy) -> str:
    """Return when a policy chooses the later of two programs of one client, in words; empty if it never seems to.

    It is asked about imagined gangs. A policy that cannot be, as it knows its own clients, is believed.
    """
    # Equal accounts: what the policy then chooses depends on the gangs alone.
    numbers = [{"client": 1.0}] * 4
    for seconds, words in (((2.0, 1.0), "takes less time"), ((1.0, 2.0), "takes more time"),
                           ((None, 1.0), "ran before"), ((1.0, None), "never ran")):  # fmt: skip
        # In both orders: a policy that takes the first of the list would look like one that keeps order.
        for turned in (False, True):
            ready = [ReadyGang("client", f"program {at}", "node", 1 + at, one, float(at), at)
                     for at, one in enumerate(seconds)]  # fmt: skip
            try:
                chosen = choose(ready[::-1] if turned else ready, PolicyState(3.0, *numbers))
            except Exception:
                return ""
            # Whatever else it returns is an error that ``ask`` reports when it happens.
            if getattr(chosen, "serial", 0) != 0:
                return f"it is listed {'first' if turned else 'last'} and {words}"
    return ""


PROGRAMS_FAILED = " The programs that it was to choose from have failed; fix it and attach again."
"""What the error of a policy that raised ends with."""


def ask(policy: Policy, ready: Sequence[ReadyGang], state: PolicyState) -> ReadyGang:
    """Return the gang that the policy chooses.

    Args:
        policy: the policy.
        ready: the gangs to choose from.
        state: what else it may read.

    Returns:
        One of ``ready``.

    Raises:
        PolicyError: the policy raised, or returned something other than one of ``ready``; the text names its line.
    """
    try:
        chosen = policy(ready, state)
    except BaseException as error:  # any error of a user's policy, even SystemExit, must not stop the controller
        raise PolicyError(
            f"policy {name_of(policy)} raised {type(error).__name__}{_said(error)} ({_line(policy, error)})."
            f"{PROGRAMS_FAILED}"
        ) from error
    # By identity: a user's ``__eq__`` could say yes to anything.
    if not any(chosen is gang for gang in ready):
        raise PolicyError(
            f"policy {name_of(policy)} ({_line(policy)}) returned {a_type_of(chosen)} that is not one of the "
            f"{counted(len(ready), 'gang')} in ready. Return one of those it is given."
        )
    return chosen


def _said(error: BaseException) -> str:
    try:
        return f": {visible(str(error))}"
    except Exception:  # the user's own __str__ may raise, too
        return ""


def name_of(policy: Policy) -> str:
    """Return the name of a policy's function or class."""
    return getattr(policy, "__name__", type(policy).__name__)


def _line(policy: Policy, error: BaseException | None = None) -> str:
    """Return the line on which a policy is written, or the line in it that raised ``error``."""
    code = getattr(policy, "__code__", None)
    line = code.co_firstlineno if code is not None else 0
    frame = error.__traceback__ if error is not None else None
    while frame is not None:
        if frame.tb_frame.f_code is code:
            line = line_of(frame)
        frame = frame.tb_next
    return describe(code.co_filename, line) if code is not None else "no source line"
