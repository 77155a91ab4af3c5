"""Kafka's classes as the JVM keeps them: parsed and verified once, in an archive that each start of a broker maps.

    python -m tools.demo.kafka_classes build/kafka/libs        # what `make setup` does; writes build/kafka/classes.jsa

A broker starts with half the processor time then. The archive is of one JVM and of these jars as they are: whatever
differs, the JVM goes on without it.
"""

import sys
import tempfile
from pathlib import Path

from tools.demo.kafka_cluster import FAST_START_JVM_OPTIONS, KafkaCluster, class_archive

TIERED = {"remote.storage.enable": "true"}


def write_class_archive(jars: Path) -> None:
    """Run a broker that leaves the archive behind, with every class that it has loaded until it stops."""
    archive = class_archive(jars)
    new = archive.with_suffix(".new")
    options = (*FAST_START_JVM_OPTIONS, f"-XX:ArchiveClassesAtExit={new}")
    archive.unlink(missing_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="tidegate-kafka-") as work,
        KafkaCluster(jars=jars, work=Path(work), jvm_options=options, sasl_plain_users={"admin": "x"}) as cluster,
    ):
        cluster.create_topic("archived", configs=TIERED)
        cluster.broker(1).stop()
    new.replace(archive)


if __name__ == "__main__":
    write_class_archive(Path(sys.argv[1]).absolute())
