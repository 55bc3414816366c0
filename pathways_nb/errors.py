"""The errors a user can meet. Each text says what is wrong, where, both values, and the fix."""

from __future__ import annotations


class PathwaysError(Exception):
    """Base of every error of this package."""


class NotAttachedError(PathwaysError):
    """Nothing is attached, or what was attached has been let go."""


class PlaceError(PathwaysError, ValueError):
    """A virtual slice asks for devices that do not exist."""


class ShardingError(PathwaysError, ValueError):
    """A sharding does not fit its place or its array."""


class UsageError(PathwaysError):
    """A call that cannot mean what it says, with the call that does.

    Not a ``TypeError``: JAX would catch and reword it on its way out of a traced operator.
    """


class PolicyError(PathwaysError, RuntimeError):
    """A user's policy raised, or returned what it was not offered."""


class NodeError(PathwaysError, RuntimeError):
    """A node failed while it ran."""


class CancelledError(PathwaysError, RuntimeError):
    """A node was cancelled before it was dispatched."""


class LostError(PathwaysError, RuntimeError):
    """A result is gone: its devices were let go, or a later call donated it."""
