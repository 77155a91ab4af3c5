"""A producer at a fixed modest rate, and how long its records took to be acknowledged.

librdkafka with acks=all and no linger: each record is a request of its own, and its time is the library's own, from
`produce` to the broker's answer, so that no delay of Python's is in it.
"""

import time
from dataclasses import dataclass
from typing import Final

from confluent_kafka import KafkaError, Message, Producer

_FLUSH_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Latencies:
    """Sorted, in milliseconds."""

    milliseconds: tuple[float, ...]

    def percentile(self, share: float) -> float:
        """The least value that this share of all does not exceed."""
        return self.milliseconds[min(len(self.milliseconds) - 1, int(share * len(self.milliseconds)))]


class SteadyProducer:
    """One connection for the whole benchmark; `run` as often as wanted."""

    def __init__(self, bootstrap_servers: str, topic: str, *, records_per_s: int, record_bytes: int) -> None:
        self._topic = topic
        self._interval_s = 1 / records_per_s
        self._value = bytes(record_bytes)
        self._producer = Producer(
            {
                "bootstrap.servers": bootstrap_servers,
                "acks": "all",
                "linger.ms": 0,
                "socket.nagle.disable": True,
                # Emergencies only: the broker ends before this connection, which it would tell.
                "log_level": 0,
            }
        )

    def run(self, seconds: float) -> Latencies:
        """Produce for so long.

        Raises:
            RuntimeError: a record was not acknowledged.
        """
        found: list[float] = []
        failures: list[str] = []

        def delivered(error: KafkaError | None, message: Message) -> None:
            latency_s = message.latency()
            if error is not None or latency_s is None:
                failures.append(str(error))
            else:
                found.append(latency_s * 1000)

        started_s = time.perf_counter()
        for number in range(int(seconds / self._interval_s)):
            # By the clock and not by the last one: a late record is not an excuse for fewer.
            due_s = started_s + number * self._interval_s
            self._producer.poll(max(0.0, due_s - time.perf_counter()))
            while (early_s := due_s - time.perf_counter()) > 0:
                self._producer.poll(early_s)
            self._producer.produce(self._topic, self._value, on_delivery=delivered)
        left = self._producer.flush(_FLUSH_S)
        if left or failures:
            raise RuntimeError(f"{left} records were not acknowledged in {_FLUSH_S:g} s; {failures[:1]}")
        return Latencies(tuple(sorted(found)))
