"""Numbers of runs and buffers where several kernels share a controller: the upper bits name the kernel.

In texts a run has the number that it has within its kernel.
"""

from __future__ import annotations

RUN_BITS, BUFFER_BITS = 24, 40
"""Lower bits of a run's and of a buffer's number, which count within a kernel."""


def run_number(run: int) -> int:
    """Return a run's number within its kernel."""
    return run & ((1 << RUN_BITS) - 1)


def kernel_of_run(run: int) -> int:
    """Return the kernel whose run this is; 0 where there is one kernel."""
    return run >> RUN_BITS


def kernel_of_buffer(buffer: int) -> int:
    """Return the kernel whose buffer this is; 0 where there is one kernel."""
    return buffer >> BUFFER_BITS
