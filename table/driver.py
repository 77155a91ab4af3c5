"""The driver's way to the tier: from serve's properties file to everything that planning needs, opened as one.

    with open_tier(config) as tier:
        views = tier.view.partitions(...)

`kept_tier` is the same for who plans again and again in one process, as Spark's Python planner does: connections stay,
the metadata topic is read on from where the last plan ended, and transaction indexes are read once.

Brokers are asked for what only they know (rights, log starts, ends, leader epochs); no record is read from them.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from storage.config.client_settings import client_settings
from storage.config.model import Mode, UpstreamConfig
from storage.config.registry import METADATA_MANAGER_KEY, MetadataManagerKind, metadata_manager_kind
from storage.config.tier_client import TierClientConfig, load_tier_config
from storage.config.value_kinds import HOST_PORTS
from storage.errors import StorageConfigError
from storage.metadata.catalog import Catalog
from storage.metadata.dump_lines import catalog_of_dump
from storage.model import TopicIdPartition
from table.brokers.client import BrokerClient
from table.brokers.metadata_topic import MetadataFollower
from table.planning.dumped_tier_view import DumpedTierView
from table.planning.own_tier_view import OwnTierView
from table.planning.request import OptionsError
from table.planning.tier_transactions import TierTransactions
from table.planning.tier_view import TierView, TierViewError
from table.reading.executor_storage import ShippedStorage, open_shipped_storage, ship_storage


@dataclass(frozen=True, slots=True)
class Tier:
    """What is open. Used by one thread."""

    view: TierView
    client: BrokerClient
    catalog: Catalog
    transactions: TierTransactions


@dataclass(frozen=True, slots=True)
class DumpedTier:
    """The same of a dump of the metadata topic. The client is never asked."""

    view: DumpedTierView
    client: BrokerClient
    catalog: Catalog
    transactions: TierTransactions


def load_config(file: str | Mapping[str, str], environ: Mapping[str, str]) -> TierClientConfig:
    """The tier's part of serve's properties file, relative to the working folder, or of the keys that it would have.

    Raises:
        ConfigError: with every problem found.
        StorageConfigError: the metadata is not in Kafka's topic.
    """
    config = load_tier_config(Path(file) if isinstance(file, str) else file, environ)
    if metadata_manager_kind(config.remote_log_metadata_manager_class_name) is not MetadataManagerKind.TOPIC_BASED:
        raise StorageConfigError(f"{METADATA_MANAGER_KEY}: tables read metadata from Kafka's topic only")
    return config


def shipped_storage(config: TierClientConfig) -> ShippedStorage:
    """Return what executors open the tier with."""
    return ship_storage(config.remote_storage_manager_class_name, config.remote_storage_config)


def shipped_tail(config: TierClientConfig, bootstrap_servers: str | None) -> UpstreamConfig:
    """Return how executors read the tail: through these servers (`host:port,…`), else through
    `upstream.bootstrap.servers`.

    Raises:
        OptionsError: they are no such list.
    """
    if bootstrap_servers is None:
        return config.upstream
    try:
        return replace(config.upstream, bootstrap_servers=HOST_PORTS.parse(bootstrap_servers))
    except ValueError as error:
        raise OptionsError([f"kafka.bootstrap.servers {error}"]) from None


def log_start_asker(config: TierClientConfig, storage: ShippedStorage) -> Callable[[TopicIdPartition], int]:
    """Return what executors ask with where a log starts now: it has our credentials, and no file of this machine."""
    return partial(_log_start_now, replace(config, remote_storage_config={}), storage)


@contextmanager
def open_dumped_tier(config: TierClientConfig, dump: Path) -> Iterator[DumpedTier]:
    """The tier as a dump of its metadata has it. No broker is asked anything.

    Raises:
        LineError: it is no dump.
        StorageConfigError: the storage manager's configuration is wrong.
    """
    catalog = catalog_of_dump(dump)
    transactions = TierTransactions(open_shipped_storage(shipped_storage(config)))
    with BrokerClient(client_settings(config.upstream)) as client:
        yield DumpedTier(DumpedTierView(catalog, transactions), client, catalog, transactions)


def _log_start_now(config: TierClientConfig, storage: ShippedStorage, partition: TopicIdPartition) -> int:
    with open_tier(config, storage) as tier:
        found = tier.client.topics([partition.topic]).get(partition.topic)
        if found is None or found.topic_id != partition.topic_id:
            raise TierViewError(f"topic {partition.topic} was deleted meanwhile")
        key = (partition.topic, partition.partition)
        return tier.view.log_starts([key])[key]


@contextmanager
def open_tier(config: TierClientConfig, storage: ShippedStorage | None = None) -> Iterator[Tier]:
    """Connections are made when they are first needed. `storage`: what the driver has shipped; None: it is the driver.

    Raises:
        StorageConfigError: the storage manager's configuration is wrong.
    """
    with ExitStack() as stack:
        of_metadata = client = stack.enter_context(BrokerClient(client_settings(config.upstream)))
        if config.metadata_client != config.upstream:
            of_metadata = stack.enter_context(BrokerClient(client_settings(config.metadata_client)))
        catalog = Catalog()
        manager = open_shipped_storage(storage or shipped_storage(config))
        transactions = TierTransactions(manager)
        view_of = OwnTierView if config.mode is Mode.STANDALONE else TierView
        view = view_of(client, MetadataFollower(of_metadata, catalog), catalog, transactions)
        yield Tier(view, client, catalog, transactions)


class KeptTier:
    """The last tier that was opened, for calls with the same configuration; one at a time.

    After any error it is closed, and the next one starts from nothing: nothing that a failed plan leaves is used.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._opened = ExitStack()
        self._tier: Tier | None = None
        self._config: TierClientConfig | None = None

    @contextmanager
    def open(self, config: TierClientConfig) -> Iterator[Tier]:
        """Raises: as `open_tier`."""
        with self._lock:
            if self._tier is None or self._config != config:
                self._close()
                self._tier, self._config = self._opened.enter_context(open_tier(config)), config
            try:
                yield self._tier
            except BaseException:
                self._close()
                raise

    def close(self) -> None:
        """Close the connections; a later `open` makes new ones. Idempotent."""
        with self._lock:
            self._close()

    def _close(self) -> None:
        self._tier = self._config = None
        self._opened.close()


kept_tier = KeptTier()
"""This process' own."""
