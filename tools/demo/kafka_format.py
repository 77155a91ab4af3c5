"""A log folder of Kafka 4.3.0 as `StorageTool format` leaves it, without the Java program that takes seconds for it.

Two files: `meta.properties` names the cluster, the node and the folder, and `bootstrap.checkpoint`, a snapshot of
KRaft's, has the levels of features that the first controller begins with. Both are StorageTool's but for times and the
folder's id. The voters must be in `controller.quorum.voters`: who brings up a
quorum by `--standalone` needs a checkpoint with voters as well.
"""

import base64
import secrets
import struct
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from crc32c import crc32c

FEATURE_LEVELS: Final = {
    "metadata.version": 30,  # 4.3-IV0
    "eligible.leader.replicas.version": 1,
    "group.version": 1,
    "share.version": 1,
    "streams.version": 1,
    "transaction.version": 2,
}
"""What StorageTool of that version gives a new cluster."""

_SNAPSHOT_HEADER, _SNAPSHOT_FOOTER = 3, 4
_CONTROL_BATCH, _NO_PRODUCER = 0x20, (-1, -1, -1)
_FEATURE_LEVEL_RECORD = 12


def format_log_folder(folder: Path, cluster_id: str, node_id: int) -> None:
    """Write both files into `folder`, which is made if need be."""
    folder.mkdir(parents=True, exist_ok=True)
    now_ms = int(time.time() * 1000)
    (folder / "bootstrap.checkpoint").write_bytes(bootstrap_checkpoint(now_ms))
    properties = {"cluster.id": cluster_id, "directory.id": random_uuid(), "node.id": node_id, "version": 1}
    # Last: a folder that has it is a formatted one.
    (folder / "meta.properties").write_text("".join(f"{key}={value}\n" for key, value in properties.items()))


def random_uuid() -> str:
    """A Kafka uuid that does not begin with a dash, as none of Kafka's own does: it would look like an option."""
    while (text := base64.urlsafe_b64encode(secrets.token_bytes(16)).rstrip(b"=").decode()).startswith("-"):
        pass
    return text


def bootstrap_checkpoint(now_ms: int) -> bytes:
    """The bytes of `bootstrap.checkpoint`: the features between a snapshot's header and its footer."""
    header = struct.pack(">hqB", 0, 0, 0)  # version, time of the last record in it: none, no tagged fields
    footer = struct.pack(">hB", 0, 0)
    levels = [(None, _feature_level(name, level)) for name, level in FEATURE_LEVELS.items()]
    return b"".join(
        [
            _batch(0, now_ms, [(_control_key(_SNAPSHOT_HEADER), header)], attributes=_CONTROL_BATCH),
            _batch(1, now_ms, levels),
            _batch(1 + len(levels), now_ms, [(_control_key(_SNAPSHOT_FOOTER), footer)], attributes=_CONTROL_BATCH),
        ]
    )


def _feature_level(name: str, level: int) -> bytes:
    """A FeatureLevelRecord in a frame of version 1; strings are one longer than they are, no tagged fields."""
    return (
        struct.pack(">BBBB", 1, _FEATURE_LEVEL_RECORD, 0, len(name) + 1) + name.encode() + struct.pack(">hB", level, 0)
    )


def _control_key(kind: int) -> bytes:
    return struct.pack(">hh", 0, kind)


def _batch(
    base_offset: int, now_ms: int, records: Sequence[tuple[bytes | None, bytes]], *, attributes: int = 0
) -> bytes:
    """A record batch of magic 2 in epoch 0, all of its records of the same time."""
    body = b"".join(_record(delta, key, value) for delta, (key, value) in enumerate(records))
    counted = struct.pack(">hiqqqhii", attributes, len(records) - 1, now_ms, now_ms, *_NO_PRODUCER, len(records)) + body
    checked = struct.pack(">ibI", 0, 2, crc32c(counted)) + counted
    return struct.pack(">qi", base_offset, len(checked)) + checked


def _record(offset_delta: int, key: bytes | None, value: bytes) -> bytes:
    # Attributes, time delta, offset delta, key, value, no headers.
    fields = b"\0\0" + _varint(offset_delta) + _sized(key) + _sized(value) + b"\0"
    return _varint(len(fields)) + fields


def _sized(value: bytes | None) -> bytes:
    return _varint(-1) if value is None else _varint(len(value)) + value


def _varint(value: int) -> bytes:
    """One byte of a zigzag varint: nothing here is longer than 63."""
    assert -64 <= value < 64, value
    return bytes([(value << 1 ^ value >> 31) & 0x7F])
