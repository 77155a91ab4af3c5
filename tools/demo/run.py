"""The demo: a real Kafka with a real tier, read by a real client, first without and then through Tidegate.

The two reads must bring the same records, the second one without a single remote fetch by the broker: the exit code
says whether. Everything runs on free loopback ports and in one temporary folder; both are given back at the end,
after success, failure and Ctrl-C alike. With --keep all of it stays until Ctrl-C.

Synchronous: confluent-kafka blocks, and Tidegate is a process of its own.
"""

import shlex
import shutil
import sys
import tempfile
import threading
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from confluent_kafka import KafkaException
from rich.console import Console

from tidegate import exit_codes
from tools.demo.interrupts import Interrupts
from tools.demo.kafka_cluster import Broker, KafkaCluster, KafkaClusterError, PartitionOffsets
from tools.demo.orders import produce
from tools.demo.reading import Reading, read_topic
from tools.demo.report import Outcome
from tools.demo.steps import Step, StepFailed, Steps
from tools.demo.tidegate_process import Tidegate

JARS: Final = Path(__file__).resolve().parents[2] / "build" / "kafka" / "libs"
TOPIC: Final = "orders"
PARTITIONS: Final = 3
SEGMENT_BYTES: Final = 1024 * 1024
"""The least that Kafka 4 takes."""
TOPIC_CONFIGS: Final = {
    "remote.storage.enable": "true",
    "segment.bytes": str(SEGMENT_BYTES),
    "local.retention.bytes": "1",
    "retention.ms": "-1",
}
RECORDS_MIN: Final = 30_000
"""About three segments a partition. The newest segment never leaves the broker."""
JVM_OPTIONS: Final = ("-Xmx512m",)
"""The JVM's own compilers, unlike the tests' quick start: the broker's speed is half of what is shown."""
TIER_TIMEOUT_S_MIN: Final = 120.0
TIERED_RECORDS_PER_S_MIN: Final = 5_000
"""Far below what a slow disk takes; for the time limit of large runs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """What the demo was asked for. `keep`: leave everything running until Ctrl-C."""

    keep: bool
    records: int


def main(options: DemoOptions) -> int:
    """Run the demo; the exit code: 0 when it has shown what it should, 1 otherwise."""
    errors = Console(stderr=True)
    problems = missing(options.records)
    for problem in problems:
        _say(errors, f"tidegate: {problem}")
    if problems:
        return exit_codes.FOUND_WRONG
    try:
        with Interrupts() as interrupts, ExitStack() as cleanup:
            try:
                return _run(options, errors, interrupts, cleanup)
            finally:
                interrupts.ignore()
    except KeyboardInterrupt:
        _say(errors, "tidegate: interrupted; everything is stopped and removed")
    return exit_codes.FOUND_WRONG


def missing(records: int) -> list[str]:
    """Return what stands in the way of the demo, a line each."""
    problems = []
    if shutil.which("java") is None:
        problems.append("java is not on the PATH: install Java 17 or 21, then run `make setup`")
    if not any(JARS.glob("kafka_2.13-*.jar")):
        problems.append(f"Kafka's jars are not in {JARS}: run `make setup` in a checkout of the project")
    if records < RECORDS_MIN:
        problems.append(f"--records {records}: at least {RECORDS_MIN}, or too little would leave the broker's own log")
    return problems


def _run(options: DemoOptions, errors: Console, interrupts: Interrupts, cleanup: ExitStack) -> int:
    with interrupts.held():
        work = Path(tempfile.mkdtemp(prefix="tidegate-demo-"))
        removal = cleanup.enter_context(ExitStack())
        removal.callback(shutil.rmtree, work, ignore_errors=True)
    try:
        demo = Demo(options.records, work, Steps(errors), interrupts, cleanup)
        outcome = demo.run()
    except (KafkaClusterError, KafkaException, OSError, StepFailed) as error:
        _say(errors, f"tidegate: {error}")
        if options.keep:
            removal.pop_all()
            _say(errors, f"tidegate: the files of this run are left in {work}")
        else:
            _say(errors, "tidegate: the files of this run are removed; --keep leaves them")
        return exit_codes.FOUND_WRONG
    complaints = _report(outcome, errors)
    if options.keep:
        _say(Console(), demo.how_to_try())
        _wait_for_interrupt()
        _say(errors, "\nStopping and removing everything.")
    return exit_codes.FOUND_WRONG if complaints else exit_codes.DONE


def _report(outcome: Outcome, errors: Console) -> list[str]:
    output = Console()
    output.print(outcome.table())
    complaints = outcome.complaints()
    for complaint in complaints:
        _say(errors, f"tidegate: {complaint}")
    if not complaints:
        _say(output, "The same records both ways, and Tidegate's cost the broker no remote fetch.")
    return complaints


def _wait_for_interrupt() -> None:
    """Until Ctrl-C, which is the right way to end here and no failure."""
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        return


class Demo:
    """The steps, in the order in which they are taken. What one starts, `cleanup` ends."""

    def __init__(self, records: int, work: Path, steps: Steps, interrupts: Interrupts, cleanup: ExitStack) -> None:
        self._records = records
        self._steps = steps
        self._interrupts = interrupts
        self._cleanup = cleanup
        self._work = work
        self._kafka = KafkaCluster(jars=JARS, work=work, jvm_options=JVM_OPTIONS)
        self._tidegate = Tidegate(
            work=work,
            server_properties=self._kafka.server_properties_path(1),
            bootstrap_servers=self._kafka.bootstrap_servers,
        )
        self._bootstrap = ""
        self._offsets: Mapping[int, PartitionOffsets] = {}

    @property
    def _broker(self) -> Broker:
        return self._kafka.broker(1)

    def run(self) -> Outcome:
        """All steps.

        Raises:
            KafkaClusterError, KafkaException, OSError, StepFailed: one did not get where it should.
        """
        self._start_kafka()
        self._fill_topic()
        self._start_tidegate()
        return self._compare()

    def how_to_try(self) -> str:
        """Addresses, and three commands to be copied from the terminal."""
        tidegate = self._tidegate
        arguments = f"--bootstrap-server {self._bootstrap} --topic {TOPIC} --from-beginning --max-messages 5"
        java = ("java", "-cp", f"{JARS}/*", "-Dorg.slf4j.simpleLogger.defaultLogLevel=error")
        consumer = (*java, "org.apache.kafka.tools.consumer.ConsoleConsumer", *arguments.split())
        check = (sys.executable, "-m", "tidegate", "check", str(tidegate.properties_path))
        return (
            f"\nKafka      {self._kafka.bootstrap_servers}\n"
            f"Tidegate   {self._bootstrap}\n"
            f"Metrics    http://{tidegate.admin_address}/metrics\n"
            f"Files      {self._work}\n\n"
            "Three commands to try, in another terminal:\n\n"
            f"{shlex.join(consumer)}\n\n"
            f"curl -s http://{tidegate.admin_address}/metrics | grep -E 'remotefetch|tidegate_(relayed|served)'\n\n"
            f"{shlex.join(check)}\n\n"
            "Ctrl-C stops everything and removes it."
        )

    def _start_kafka(self) -> None:
        with self._steps.step("Starting Kafka with a remote tier") as step:
            with self._interrupts.held():
                self._cleanup.callback(self._kafka.close)
                self._broker.launch()
            # Not the cluster's wait, which passes over a broker that has ended already.
            self._broker.wait_ready()
            step.result = f"broker {self._kafka.bootstrap_servers}"

    def _fill_topic(self) -> None:
        with self._steps.step(f"Creating the tiered topic {TOPIC}") as step:
            self._kafka.create_topic(TOPIC, PARTITIONS, TOPIC_CONFIGS)
            step.result = f"{PARTITIONS} partitions, segments of 1 MiB"
        with self._steps.step(f"Producing {self._records:,} orders") as step:
            record_bytes = produce(
                self._kafka.bootstrap_servers, TOPIC, self._records, lambda done: step.show(done, self._records)
            )
            step.result = f"{record_bytes / 1e6:,.0f} MB, keys and headers"
        with self._steps.step("Waiting for the tier") as step:
            self._offsets = self._wait_for_tier(step, local_records_max=SEGMENT_BYTES * self._records // record_bytes)

    def _wait_for_tier(self, step: Step, local_records_max: int) -> Mapping[int, PartitionOffsets]:
        """Until each partition holds no more than its newest segment, and nothing twice."""

        def is_settled(known: PartitionOffsets) -> bool:
            is_short = known.high_watermark - known.local_log_start_offset <= local_records_max
            return is_short and known.local_log_start_offset == known.latest_tiered_offset + 1

        offsets = self._kafka.wait_tiered(
            TOPIC,
            until=is_settled,
            timeout_s=max(TIER_TIMEOUT_S_MIN, self._records / TIERED_RECORDS_PER_S_MIN),
            progress=lambda known: step.show(_only_in_tier(known), self._records),
        )
        share = _only_in_tier(offsets) / self._records
        if share <= 0.5:
            raise StepFailed(f"only {share:.0%} of the offsets have left the broker: ask for more --records")
        step.result = f"{share:.1%} are only in the tier"
        return offsets

    def _start_tidegate(self) -> None:
        with self._steps.step("Starting Tidegate") as step:
            with self._interrupts.held():
                self._cleanup.callback(self._tidegate.stop)
                self._tidegate.start()
            self._bootstrap = self._tidegate.wait_ready()
            step.result = f"bootstrap {self._bootstrap}"

    def _compare(self) -> Outcome:
        """Both reads. The counters are looked at between them, never during one."""
        at_start = self._broker.remote_fetch_requests()
        directly = self._read("Reading all from the broker", self._kafka.bootstrap_servers)
        between = self._broker.remote_fetch_requests()
        counted_before = self._tidegate.counters(TOPIC)
        try:
            through_tidegate = self._read("Reading all through Tidegate", self._bootstrap)
        except StepFailed as error:
            raise StepFailed(f"{error}\n{self._tidegate.log_tail()}") from error
        counted_after = self._tidegate.counters(TOPIC)
        return Outcome(
            produced=self._records,
            directly=directly,
            through_tidegate=through_tidegate,
            counted=counted_after - counted_before,
            remote_fetches_at_start=at_start,
            remote_fetches_between=between,
            remote_fetches_at_end=self._broker.remote_fetch_requests(),
        )

    def _read(self, text: str, bootstrap_servers: str) -> Reading:
        with self._steps.step(text) as step:
            reading = read_topic(bootstrap_servers, TOPIC, self._offsets, lambda done: step.show(done, self._records))
            step.result = f"{reading.records:,} records"
            return reading


def _only_in_tier(offsets: Mapping[int, PartitionOffsets]) -> int:
    return sum(known.local_log_start_offset - known.log_start_offset for known in offsets.values())


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)
