"""The demo's records: orders of a web shop, the same ones on every run, and how they get into Kafka.

Key: the customer, so that a customer's orders stay in order. Value: JSON, about 350 bytes. Headers: who wrote it and
which schema. Timestamps: one order every 100 ms from the first day of 2025 on.
"""

import json
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Producer

from tools.demo.steps import StepFailed

SEED: Final = 405
START_TIMESTAMP_MS: Final = 1_735_689_600_000
INTERVAL_MS: Final = 100
CUSTOMERS: Final = 5_000
BATCH_BYTES: Final = 64 * 1024
"""Sixteen batches in a segment of 1 MiB, so that offset indexes have something to find."""

DELIVERY_TIMEOUT_S: Final = 60.0
_PROGRESS_RECORDS: Final = 2_000
_CITIES: Final = ("Aarhus", "Bergen", "Ghent", "Kraków", "Lyon", "Porto", "Torino", "Utrecht")
_GOODS: Final = ("anchor", "bilge pump", "cleat", "compass", "fender", "flare", "halyard", "oar", "shackle", "winch")


@dataclass(frozen=True, slots=True)
class Order:
    """One record, as it is produced."""

    key: bytes
    value: bytes
    headers: tuple[tuple[str, bytes], ...]
    timestamp_ms: int

    @property
    def record_bytes(self) -> int:
        return len(self.key) + len(self.value) + sum(len(name) + len(value) for name, value in self.headers)


def orders(count: int) -> Iterator[Order]:
    """The first `count` orders."""
    chance = random.Random(SEED)
    for number in range(count):
        customer = f"customer-{chance.randrange(CUSTOMERS):04}"
        items = [
            {
                "sku": chance.choice(_GOODS),
                "quantity": chance.randrange(1, 9),
                "price_cents": chance.randrange(99, 9999),
            }
            for _ in range(chance.randrange(2, 6))
        ]
        timestamp_ms = START_TIMESTAMP_MS + INTERVAL_MS * number
        order = {
            "order_id": f"order-{number:09}",
            "customer": customer,
            "city": chance.choice(_CITIES),
            "placed_at_ms": timestamp_ms,
            "items": items,
            "total_cents": sum(int(item["quantity"]) * int(item["price_cents"]) for item in items),
        }
        headers = (("source", b"web-shop"), ("schema", b"order-v1"))
        yield Order(customer.encode(), json.dumps(order, ensure_ascii=False).encode(), headers, timestamp_ms)


def produce(bootstrap_servers: str, topic: str, count: int, progress: Callable[[int], None]) -> int:
    """Produce the first `count` orders, wait for all to be acknowledged, and return their bytes.

    Raises:
        StepFailed: one was not taken.
    """
    failures: list[str] = []
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "enable.idempotence": True,
            "linger.ms": 20,
            "batch.size": BATCH_BYTES,
            "delivery.report.only.error": True,
            "on_delivery": lambda error, message: failures.append(str(error)),
        }
    )
    record_bytes = 0
    try:
        for number, order in enumerate(orders(count)):
            if number % _PROGRESS_RECORDS == 0:
                producer.poll(0)
                progress(number)
            _produce_one(producer, topic, order)
            record_bytes += order.record_bytes
        deadline_s = time.monotonic() + DELIVERY_TIMEOUT_S
        while left := producer.flush(0.5):
            if failures or time.monotonic() > deadline_s:
                failures.append(f"not acknowledged after {DELIVERY_TIMEOUT_S:g} s")
                raise StepFailed(f"{left:,} of {count:,} records were not taken by the broker: {failures[0]}")
    except BaseException:
        producer.purge()  # or its end would wait for a broker that is about to be stopped
        raise
    if failures:
        raise StepFailed(f"{len(failures):,} of {count:,} records were refused by the broker: {failures[0]}")
    return record_bytes


def _produce_one(producer: Producer, topic: str, order: Order) -> None:
    deadline_s = time.monotonic() + DELIVERY_TIMEOUT_S
    while True:
        try:
            producer.produce(topic, order.value, order.key, headers=list(order.headers), timestamp=order.timestamp_ms)
        except BufferError as error:
            if time.monotonic() > deadline_s:
                raise StepFailed(f"the broker took no record for {DELIVERY_TIMEOUT_S:g} s") from error
            producer.poll(0.1)
        else:
            return
