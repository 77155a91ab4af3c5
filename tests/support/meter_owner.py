"""Meters' verbs are called in the trio thread: one that is not raises, unless it counts under its meter's lock, or only
notes what is so now."""

import functools
import threading
from collections.abc import Callable
from typing import Any, Final

import trio

from metrics.copy_meters import CopyMeter, MetadataTopicMeter
from metrics.meters import Meters

FROM_THREADS: Final = {
    "CacheMeter": "on_disk_available on_disk_error on_disk_skipped on_evicted on_expired on_quarantined on_resident",
    "GetMeter": "on_end",
}
"""What the disk cache's threads call, and those that fetch manifests and indexes."""


def guard_meters() -> None:
    """From here on, in this process."""
    for meter in (CopyMeter, MetadataTopicMeter, *map(type, vars(Meters()).values())):
        for name, verb in tuple(vars(meter).items()):
            if name.startswith("on_") and name not in FROM_THREADS.get(meter.__name__, "").split():
                setattr(meter, name, _guarded(verb))


def _guarded(verb: Callable[..., None]) -> Callable[..., None]:
    @functools.wraps(verb)
    def call(*arguments: Any, **named: Any) -> None:
        is_owner = trio.lowlevel.in_trio_run() or threading.current_thread() is threading.main_thread()
        assert is_owner, f"{verb.__qualname__} is called in {threading.current_thread().name}"
        verb(*arguments, **named)

    return call
