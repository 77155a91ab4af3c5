"""`tidegate serve`: everything put together, from configuration to clean shutdown.

All that outlives a client is a task of the process (`proxy.tasks`), which begins again what fails: accept loops, fills,
own connections and upkeep. Signals are `tidegate.life_cycle`'s matter.
"""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial

import trio

from storage.buffers import keep_freed_memory
from storage.config.model import Mode
from storage.metadata.snapshot import Snapshot
from tidegate.answering import open_answering
from tidegate.application import Application
from tidegate.config.model import Config
from tidegate.front import Front, OwnFront
from tidegate.life_cycle import SIGNALS, LifeCycle, SystemdNotify, exit_code_of
from tidegate.log_lines import lines_in_thread
from tidegate.logs import configure_logs
from tidegate.operators_side import open_operators_side
from tidegate.process import open_process
from tidegate.read_tier import OpenManager, open_read_tier
from tidegate.start_lines import python_tls, say_end, say_start
from tidegate.topics import follow_topics
from tidegate.upkeep import follow_brokers


async def serve(config: Config) -> int:
    """Run until a signal; the exit code."""
    keep_freed_memory()
    configure_logs(config.log.level, config.log.format)
    with lines_in_thread():
        say_start(config)
        with trio.open_signal_receiver(*SIGNALS) as signals:
            life = LifeCycle(signals, SystemdNotify(os.environ))
            exit_code = await exit_code_of(life.run(lambda: run(config)))
        say_end(exit_code)
    return exit_code


@asynccontextmanager
async def run(
    config: Config,
    *,
    front: Front | None = None,
    snapshot: Snapshot | None = None,
    open_storage_manager: OpenManager | None = None,
) -> AsyncIterator[Application]:
    """The application, listening; it is torn down when the block is left.

    Args:
        front: how it is reached; None: by listeners of its own.
        snapshot: the catalog's, if somebody has read it already.
        open_storage_manager: None: by the storage plug-in's configuration.

    Raises:
        OSError: a listener cannot be bound, or the audit log not written (names key and address or path).
        RemoteStorageError: the storage plug-in's configuration is wrong.
    """
    async with open_process(config, logs=front is None) as process:
        front = OwnFront(config, process.settings) if front is None else front
        cluster, readiness, tasks = process.cluster, process.readiness, process.tasks
        tier = await open_read_tier(process, snapshot, open_storage_manager)
        answering = open_answering(process, tier)
        copying = None
        if config.mode is Mode.STANDALONE:
            from tidegate.standalone_wiring import open_standalone  # of no use to a replica

            copying = open_standalone(process, tier, answering.frontiers)
        listening = await front.listen(cluster, answering.server, readiness, tasks)
        admin, reloader = await open_operators_side(process, front, tier, answering, copying)
        book, known, words = listening.addresses, listening.known, process.reasons.no_broker
        tasks.keep("upstream", partial(follow_brokers, cluster, book, known, readiness, words))
        tasks.keep("topics", partial(follow_topics, cluster, tier.catalog, answering.fallback))
        application = Application(
            listening.bootstrap,
            admin,
            readiness,
            process.meters,
            answering.server,
            listening.addresses,
            tier.catalog,
            cluster,
            process.settings,
            reloader,
            python_tls(config),
        )
        yield application
        with application.closing:
            if copying is not None:
                await copying.aclose()
            await tier.started.aclose()
