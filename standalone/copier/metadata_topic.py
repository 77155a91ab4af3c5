"""`__remote_log_metadata` from its writer's side: made if it is missing, and published to (docs/kafka-tier.md).

- Made as Kafka 4.3 makes it: 50 partitions, three replicas or as many as there are brokers, `cleanup.policy=delete`,
  `retention.ms=-1`, and `retention.bytes=-1` whatever the brokers' own default is;
  `rlmm.config.remote.log.metadata.topic.*` says otherwise. If two make it at once, both succeed. A topic that is
  there keeps its own partition count; whether it may be used is for standalone.metadata_guard to say.
- Published to by an idempotent producer with acks=all, into the partition that the caller names. It never has brokers
  make the topic, as they would with their own partitions and retention. Reading stays the event log's matter
  (storage.metadata.topic_log).
"""

import threading
from concurrent.futures import Future
from typing import Final

import structlog
from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # its re-exports are not marked

from standalone.copier.config import MetadataTopicConfig
from standalone.copier.librdkafka import ANSWER_TIMEOUT_MS, LibrdkafkaLog, Properties
from storage.errors import MetadataLogError, RemoteStorageError, RetriableRemoteStorageError

REPLICATION_FACTOR: Final = 3
DELIVERY_TIMEOUT_MS: Final = 30_000
"""Until then librdkafka itself tries again: longer than an election of leaders takes."""
_POLL_S: Final = 0.5
_GRACE_S: Final = 10.0
"""Beyond the delivery timeout, for the report of it."""

_DENIED: Final = frozenset({KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError.CLUSTER_AUTHORIZATION_FAILED})

_STAYS: Final = _DENIED | frozenset(
    {
        KafkaError.MSG_SIZE_TOO_LARGE,
        KafkaError.RECORD_LIST_TOO_LARGE,
        KafkaError.TOPIC_EXCEPTION,
        KafkaError.INVALID_RECORD,
        KafkaError.POLICY_VIOLATION,
        KafkaError.INVALID_CONFIG,
        KafkaError.INVALID_PARTITIONS,
        KafkaError.INVALID_REPLICATION_FACTOR,
        KafkaError.UNSUPPORTED_VERSION,
    }
)
"""Codes of errors that no later attempt gets rid of."""

_log: structlog.stdlib.BoundLogger = structlog.get_logger(__name__)


def create_metadata_topic(
    properties: Properties, wanted: MetadataTopicConfig, *, topic: str, broker_count: int, validates_only: bool = False
) -> bool:
    """Make the topic; False if somebody else has. Blocking.

    Args:
        broker_count: there cannot be more replicas than brokers.
        validates_only: say what would become of it, and make nothing.

    Raises:
        RetriableRemoteStorageError: no controller, or no answer.
        MetadataLogError: it is refused, with the missing ACL if that is why.
    """
    admin = AdminClient(properties, logger=LibrdkafkaLog())
    factor = wanted.replication_factor or max(1, min(REPLICATION_FACTOR, broker_count))
    while True:
        error = _create(admin, wanted, topic, factor, validates_only)
        if error is None:
            if not validates_only:
                _log.info("metadata_topic_made", topic=topic, partitions=wanted.partition_count, replicas=factor)
            return True
        if error.code() == KafkaError.TOPIC_ALREADY_EXISTS:
            return False
        is_free = wanted.replication_factor is None
        if error.code() == KafkaError.INVALID_REPLICATION_FACTOR and is_free and factor > 1:
            factor -= 1  # a broker has left since they were counted
            continue
        raise _storage_error(f"topic {topic} cannot be made", error, f"ACL Create on Topic {topic} is missing")


def _create(
    admin: AdminClient, wanted: MetadataTopicConfig, topic: str, factor: int, validates_only: bool
) -> KafkaError | None:
    configs = {"cleanup.policy": "delete", "retention.ms": str(wanted.retention_ms), "retention.bytes": "-1"}
    in_sync_min = wanted.in_sync_min or (2 if factor >= REPLICATION_FACTOR else None)
    if in_sync_min is not None:
        configs["min.insync.replicas"] = str(in_sync_min)
    new = NewTopic(topic, num_partitions=wanted.partition_count, replication_factor=factor, config=configs)
    answer_s = ANSWER_TIMEOUT_MS / 1000
    [future] = admin.create_topics(
        [new], operation_timeout=answer_s, request_timeout=answer_s, validate_only=validates_only
    ).values()
    try:
        future.result(answer_s + _GRACE_S)
    except KafkaException as error:
        return _kafka_error(error)
    return None


class MetadataPublisher:
    """The producer. Thread-safe; one thread of its own serves the reports of all who publish.

    Args:
        properties: librdkafka's, as `client_properties` makes them.
    """

    def __init__(self, properties: Properties, *, topic: str, delivery_timeout_ms: int = DELIVERY_TIMEOUT_MS) -> None:
        self._properties: Properties = {
            **properties,
            "enable.idempotence": True,
            "acks": "all",
            "linger.ms": 0,
            "message.timeout.ms": delivery_timeout_ms,
            "request.timeout.ms": min(ANSWER_TIMEOUT_MS, delivery_timeout_ms),
            "message.send.max.retries": 2**31 - 1,
            "allow.auto.create.topics": False,
        }
        self._topic = topic
        self._report_s_max = delivery_timeout_ms / 1000 + _GRACE_S
        self._lock = threading.Lock()
        self._producer: Producer | None = None
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._serve_reports, name="metadata-publisher", daemon=True)
        self._thread.start()

    def publish(self, partition: int, value: bytes) -> int:
        """Append one record and return its offset once all in-sync replicas have it. Blocks.

        Raises:
            RetriableRemoteStorageError: it failed, and may be there nevertheless.
            MetadataLogError: it is refused for good, or the publisher is closed.
        """
        delivery: Future[tuple[KafkaError | None, int]] = Future()

        def told(error: KafkaError | None, message: Message) -> None:
            delivery.set_result((error, message.offset() or 0))

        producer = self._open()
        try:
            producer.produce(self._topic, value=value, partition=partition, on_delivery=told)
            error, offset = delivery.result(self._report_s_max)
        except BufferError as full:
            raise RetriableRemoteStorageError(f"{self._topic}-{partition}: too many records wait: {full}") from full
        except KafkaException as refused:
            raise self._failed(producer, partition, _kafka_error(refused)) from refused
        except TimeoutError as late:
            raise RetriableRemoteStorageError(f"{self._topic}-{partition}: no word of a record that was sent") from late
        if error is not None:
            raise self._failed(producer, partition, error)
        return offset

    def close(self) -> None:
        """End it; calls that still wait fail. Idempotent. Blocking."""
        self._closed.set()
        self._thread.join()
        with self._lock:
            producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()
            producer.flush(_GRACE_S)

    def _open(self) -> Producer:
        with self._lock:
            if self._closed.is_set():
                raise MetadataLogError(f"{self._topic}: the publisher is closed")
            if self._producer is None:
                self._producer = Producer(self._properties, logger=LibrdkafkaLog())
            return self._producer

    def _serve_reports(self) -> None:
        while not self._closed.is_set():
            producer = self._producer
            if producer is None:
                self._closed.wait(_POLL_S / 10)
            else:
                producer.poll(_POLL_S)

    def _failed(self, producer: Producer, partition: int, error: KafkaError) -> RemoteStorageError:
        if error.fatal() or error.code() in _DENIED:
            # The sequence of records is broken, or the topic is known as denied: this producer takes no more records,
            # not even when the right is there. The next publish makes another one.
            with self._lock:
                if self._producer is producer:
                    self._producer = None
            try:
                producer.flush(_POLL_S)  # others who wait for it hear of it now
            except KafkaException as fatal:
                # The producer has ended by itself meanwhile, and says so here too. The record's own error is the news.
                _log.debug("metadata_producer_ended", topic=self._topic, reason=str(fatal))
        is_old = error.code() == KafkaError.CLUSTER_AUTHORIZATION_FAILED
        missing = "IdempotentWrite on Cluster (brokers before 3.0)" if is_old else f"Write on Topic {self._topic}"
        return _storage_error(f"{self._topic}-{partition}: not published", error, f"ACL {missing} is missing")


def _kafka_error(error: KafkaException) -> KafkaError:
    found: KafkaError = error.args[0]
    return found


def _storage_error(what: str, error: KafkaError, missing: str) -> RemoteStorageError:
    is_denied = error.code() in _DENIED
    kind = MetadataLogError if error.code() in _STAYS else RetriableRemoteStorageError
    return kind(f"{what}: {missing if is_denied else error.str()}")
