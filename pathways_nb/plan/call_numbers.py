"""Numbers of calls and buffers where several kernels share a controller: the upper bits name the kernel.

In texts a call has the number that it has within its kernel.
"""

from __future__ import annotations

CALL_BITS, BUFFER_BITS = 24, 40
"""Lower bits of a call's and of a buffer's number, which count within a kernel."""


def call_number(call: int) -> int:
    """Return a call's number within its kernel."""
    return call & ((1 << CALL_BITS) - 1)


def kernel_of_call(call: int) -> int:
    """Return the kernel whose call this is; 0 where there is one kernel."""
    return call >> CALL_BITS


def kernel_of_buffer(buffer: int) -> int:
    """Return the kernel whose buffer this is; 0 where there is one kernel."""
    return buffer >> BUFFER_BITS
