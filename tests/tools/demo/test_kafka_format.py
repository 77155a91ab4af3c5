"""The log folder that we write is the one that Kafka's own StorageTool writes."""

import struct
import subprocess
from pathlib import Path

import pytest
from crc32c import crc32c

from tests.support.needs import JARS
from tools.demo.kafka_cluster import KafkaCluster
from tools.demo.kafka_format import format_log_folder
from tools.demo.kafka_properties import NodePlan, properties_text, server_properties

NODES = {"broker and controller": (1, 20_001), "controller": (1, None), "broker": (2, 20_001)}
"""Node id and port for clients; node 1 is the quorum."""


@pytest.mark.needs("java", "kafka")
def test_our_files_are_those_of_storage_tool_but_for_times_and_the_folders_id(tmp_path: Path) -> None:
    cluster = KafkaCluster(jars=JARS, work=tmp_path)
    for role, (node_id, port) in NODES.items():
        ours, theirs, settings = (tmp_path / f"{role} {name}" for name in ("ours", "theirs", "properties"))
        node = NodePlan(node_id=node_id, data_dir=theirs, plaintext_port=port)
        settings.write_text(properties_text(server_properties(cluster.plan, node)))
        command = cluster.java_command(
            "kafka.tools.StorageTool", "format", "-t", cluster.cluster_id, "-c", str(settings)
        )
        subprocess.run(command, stdout=subprocess.DEVNULL, check=True, timeout=120)
        format_log_folder(ours, cluster.cluster_id, node_id)
        assert {path.name for path in ours.iterdir()} == {path.name for path in theirs.iterdir()}, role
        assert properties(ours) == properties(theirs), role
        assert batches(ours) == batches(theirs), role


def properties(folder: Path) -> dict[str, str]:
    lines = (folder / "meta.properties").read_text().splitlines()
    found = dict(line.split("=", 1) for line in lines if not line.startswith("#"))
    assert len(found.pop("directory.id")) == 22
    return found


def batches(folder: Path) -> list[bytes]:
    """Without their times, and without the checksums over these, which are right."""
    left, found = (folder / "bootstrap.checkpoint").read_bytes(), []
    while left:
        (length,) = struct.unpack_from(">i", left, 8)
        batch, left = left[: 12 + length], left[12 + length :]
        assert struct.unpack_from(">I", batch, 17) == (crc32c(batch[21:]),)
        found.append(batch[:17] + batch[21:27] + batch[43:])
    return found
