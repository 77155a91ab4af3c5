import itertools
import json

from confluent_kafka import Producer

from tools.demo import orders as module
from tools.demo.orders import CUSTOMERS, Order, orders


class FullProducer(Producer):
    """Its queue is full at the first two tries."""

    tries = 0
    polls = 0

    def produce(self, *_: object, **__: object) -> None:
        self.tries += 1
        if self.tries <= 2:
            raise BufferError

    def poll(self, timeout: float = -1) -> int:
        self.polls += 1
        return 0


def test_orders_are_the_same_on_every_run() -> None:
    assert list(orders(200)) == list(itertools.islice(orders(300), 200))


def test_an_order_is_json_with_key_headers_and_a_rising_timestamp() -> None:
    known = list(orders(500))
    for number, order in enumerate(known):
        value = json.loads(order.value)
        assert value["order_id"] == f"order-{number:09}"
        assert value["customer"].encode() == order.key
        assert value["placed_at_ms"] == order.timestamp_ms
        assert value["total_cents"] == sum(item["quantity"] * item["price_cents"] for item in value["items"])
        assert dict(order.headers) == {"source": b"web-shop", "schema": b"order-v1"}
    assert [order.timestamp_ms for order in known] == sorted({order.timestamp_ms for order in known})
    assert 250 < sum(order.record_bytes for order in known) / len(known) < 500


def test_keys_are_many_enough_for_every_partition() -> None:
    assert len({order.key for order in orders(2000)}) > CUSTOMERS / 10
    assert Order(b"12", b"345", (("67", b"8"), ("", b"90")), 0).record_bytes == 10


def test_a_full_queue_is_waited_for() -> None:
    producer = FullProducer({})
    module._produce_one(producer, "orders", next(orders(1)))
    assert (producer.tries, producer.polls) == (3, 2)
