"""What every part of a process has that serves or copies: its configuration, what it counts and tells, and where its
tasks run."""

from collections.abc import AsyncIterator
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass
from functools import partial

import trio

from metrics.meters import Meters
from metrics.registry import Registry
from protocol.client.messages import preload_schemas
from proxy.readiness import Readiness
from proxy.tasks import Tasks
from proxy.upstream.cluster import Cluster
from storage.config.client_settings import client_settings
from storage.errors import StorageConfigError
from tidegate.config.model import Config
from tidegate.live_settings import LiveSettings
from tidegate.loop_stall import watch_loop
from tidegate.open_files import watch_open_files
from tidegate.reasons import Reasons


@dataclass(frozen=True, slots=True)
class Process:
    """`settings` are as they are now. `at_end` is closed when no task runs any more."""

    config: Config
    settings: LiveSettings
    meters: Meters
    readiness: Readiness
    tasks: Tasks
    cluster: Cluster
    at_end: ExitStack

    @property
    def reasons(self) -> Reasons:
        """Return what operators read of errors."""
        return Reasons(self.config)


@asynccontextmanager
async def open_process(
    config: Config,
    *,
    logs: bool = True,
    is_measured: bool = True,
    ends: tuple[type[Exception], ...] = (StorageConfigError,),
) -> AsyncIterator[Process]:
    """A process that does nothing yet; its tasks end with the block.

    Args:
        logs: whether its readiness is logged.
        is_measured: whether its readiness is that of the metrics.
        ends: errors of tasks that end the process.

    Raises:
        ssl.SSLError: OpenSSL refuses the certificate towards clients.
    """
    meters = Meters(Registry(config.metrics.kip405_names, config.metrics.topics_max))
    readiness = Readiness(meters.health if is_measured else None, logs=logs, complete=Reasons(config).complete)
    settings = LiveSettings(config)
    with ExitStack() as at_end:
        async with trio.open_nursery() as nursery:
            tasks = Tasks(nursery, meters.tasks, readiness.tasks_fail, ends=ends)
            cluster = Cluster(client_settings(config.upstream), tasks)
            # A second of imports, better now than in the first question's way.
            await trio.to_thread.run_sync(preload_schemas)
            tasks.keep("loop", partial(watch_loop, meters.loop))
            tasks.keep("open files", partial(watch_open_files, readiness))
            yield Process(config, settings, meters, readiness, tasks, cluster, at_end)
            nursery.cancel_scope.cancel()
