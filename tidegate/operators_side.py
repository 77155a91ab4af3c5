"""What operators see of a process that serves, and what they change in it: pages, gauges, the configuration."""

from functools import partial
from typing import TYPE_CHECKING

from storage.config.registry import stored_bytes
from tidegate.admin import OwnPages
from tidegate.answering import Answering
from tidegate.front import Front
from tidegate.process import Process
from tidegate.read_tier import ReadTier
from tidegate.reload import Reloader
from tidegate.start_lines import python_tls
from tidegate.status.collect import Collector, TierSide
from tidegate.upkeep import take_gauges

if TYPE_CHECKING:
    from standalone.copying import Copying


async def open_operators_side(
    process: Process, front: Front, read: ReadTier, answering: Answering, copying: "Copying | None"
) -> tuple[tuple[str, int], Reloader]:
    """Return where the pages are, and what reads the configuration again.

    Raises:
        OSError: the pages' listener cannot be bound.
    """
    config, meters, readiness, tasks = process.config, process.meters, process.readiness, process.tasks
    server, storage = answering.server, read.storage
    side = TierSide(
        read.catalog,
        read.started,
        answering.frontiers,
        storage,
        read.disk,
        answering.fallback,
        read.manager.identity,
        python_tls(config),
        partial(stored_bytes, config.remote_storage_manager_class_name),
        copying,
    )
    collector = Collector(readiness, process.cluster, side, server, meters)
    pages = OwnPages(readiness, meters.registry, storage.streams, collector.status, server.groups)
    address = await front.show(pages, tasks)
    reloader = Reloader(config, front.load, process.settings.follow, meters, readiness)
    tasks.keep("configuration", reloader.run)
    tasks.keep("status", collector.run)
    tasks.keep("gauges", partial(take_gauges, storage, answering.fallback, server, readiness, meters))
    return address, reloader
