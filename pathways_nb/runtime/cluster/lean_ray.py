"""Imports Ray, and starts a cluster on this machine, without what nobody here uses: that is most of the time.

It imports nothing of the package, so that ``keep_cluster`` can import it by path.
"""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

_UNUSED = ("start_monitor", "start_log_monitor", "start_api_server")
"""Methods of Ray's node that start its autoscaler, the collector of logs, and the server of its dashboard."""
_LEFT_OUT = Path(__file__).with_name("left_out")
"""A folder with modules that Ray's processes do without, and this one if Ray is what imports them first."""
_MEMORY = 512 << 20
"""Bytes of the object store."""


def imported() -> Any:
    """Return Ray's module.

    Raises:
        ImportError: it is not installed.
    """
    left_out = [path.stem for path in _LEFT_OUT.glob("*.py") if path.stem not in sys.modules]
    sys.modules.update(dict.fromkeys(left_out))  # type: ignore[arg-type]  # None makes an import fail
    try:
        return importlib.import_module("ray")
    finally:
        for name in left_out:
            del sys.modules[name]


def start(ray: Any, folder: Path, **options: Any) -> None:
    """Start a cluster on loopback and connect this process to it.

    Args:
        ray: Ray's module.
        folder: for its logs and sockets; Ray lets everybody write to it, so it must lie where nobody else comes.
        **options: of ``ray.init``.
    """
    path = os.pathsep.join(filter(None, (str(_LEFT_OUT), os.environ.get("PYTHONPATH"))))
    with _without_unused(), _on_loopback(), patch.dict(os.environ, PYTHONPATH=path):
        ray.init(
            address="local",
            num_cpus=max(os.cpu_count() or 1, 1),
            include_dashboard=False,
            _node_ip_address="127.0.0.1",
            _temp_dir=str(folder),
            object_store_memory=_MEMORY,
            log_to_driver=False,
            logging_level="error",
            **options,
        )


def join(ray: Any, address: str, **options: Any) -> None:
    """Connect this process to a cluster that ``start`` has made in another process.

    Args:
        ray: Ray's module.
        address: of the cluster.
        **options: of ``ray.init``.
    """
    with _on_loopback():
        ray.init(address=address, log_to_driver=False, logging_level="error", **options)


@contextlib.contextmanager
def _on_loopback() -> Iterator[None]:
    """Have Ray take 127.0.0.1 as it is in this block: it turns it into an address that other machines reach.

    Yields:
        Nothing.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, AttributeError):  # it is private; see ``open_ports`` if it is gone
            services = importlib.import_module("ray._private.services")
            stack.enter_context(patch.object(services, "resolve_ip_for_localhost", lambda host: host))
        yield


@contextlib.contextmanager
def _without_unused() -> Iterator[None]:
    """Keep Ray in this block from starting what is not used.

    Yields:
        Nothing.
    """
    with contextlib.ExitStack() as stack:
        with contextlib.suppress(ImportError, AttributeError):  # it is private: if it is gone, all processes start
            node = importlib.import_module("ray._private.node").Node
            for name in filter(partial(hasattr, node), _UNUSED):
                stack.enter_context(patch.object(node, name, lambda self, *args, **options: None))
        yield
