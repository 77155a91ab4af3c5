"""A broker's log folders while it is down: its partitions, and the checkpoints that `takeover` changes.

Every file is as Kafka 2.8 to 4.3 write it: `meta.properties` and `.lock` in each of `log.dirs`, a folder for each
partition with `partition.metadata` and `leader-epoch-checkpoint`, and beside the folders `log-start-offset-checkpoint`.
A file is replaced as a whole (draft, fsync, rename, fsync of the folder), keeps its owner and its rights, and what it
held before is in `<name>.tidegate-backup`; a broker looks at neither.

Synchronous. Every function may raise OSError.
"""

import fcntl
import mmap
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from protocol.record_batches import CorruptBatchError, iterate_batches
from storage.errors import TierError
from storage.indexes.leader_epochs import LeaderEpochs, parse_leader_epochs
from storage.limited_files import UnreadableFileError, read_limited
from storage.model import TopicIdPartition, uuid_from_text

BACKUP_SUFFIX: Final = ".tidegate-backup"
LEADER_EPOCHS: Final = "leader-epoch-checkpoint"
LOG_STARTS: Final = "log-start-offset-checkpoint"

_CLEAN_SHUTDOWN: Final = ".kafka_cleanshutdown"
_META: Final = "meta.properties"

CHECKPOINT_BYTES_MAX: Final = 256 * 1024 * 1024

_FOLDER = re.compile(r"(?P<topic>[A-Za-z0-9._-]{1,249})-(?P<partition>[0-9]{1,10})")
_BEING_MOVED = re.compile(r".+\.[0-9a-f]{32}-future")
_TOPIC_ID = re.compile(r"^topic_id: *(\S+)$", re.MULTILINE)
_LOG_START = re.compile(r"(?P<topic>\S+) (?P<partition>[0-9]{1,10}) (?P<offset>[0-9]{1,19})")


@dataclass(frozen=True, slots=True)
class PartitionFolder:
    """A partition at the broker. `path` is in one of its log folders."""

    path: Path
    partition: TopicIdPartition

    def leader_epochs(self) -> LeaderEpochs:
        """The broker's own; empty before its first record.

        Raises:
            CorruptObjectError, TierError: it is no checkpoint.
        """
        path = self.path / LEADER_EPOCHS
        return parse_leader_epochs(_read(path), str(path)) if path.exists() else ()

    def log_range(self) -> tuple[int, int]:
        """Return where the broker's log begins on disk, and the offset behind its last whole batch."""
        logs = sorted(path for path in self.path.glob("*.log") if path.stem.isdigit())
        if not logs:
            return 0, 0
        return int(logs[0].stem), _end_offset(logs[-1])


@contextmanager
def locked(log_dirs: Sequence[Path]) -> Iterator[None]:
    """Keep the broker from starting while this is entered.

    Raises:
        TierError: it runs; it was killed, so that its checkpoints may be behind; or a folder is none of a broker's.
    """
    with ExitStack() as stack:
        for folder in log_dirs:
            if not (folder / _META).is_file():
                raise TierError(
                    f"{folder} has no {_META}: name a folder of the broker's log.dirs; a disk that is new must be "
                    "formatted before (kafka-storage.sh format)"
                )
            lock = stack.enter_context((folder / ".lock").open("ab"))
            try:
                # Java's FileChannel.lock, which a broker holds as long as it runs, is this lock.
                fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                raise TierError(f"{folder} is in use: stop its broker in order, and start it afterwards") from None
            if not (folder / _CLEAN_SHUTDOWN).exists() and partition_folders(folder):
                raise TierError(
                    f"{folder}: its broker did not stop in order. While no topic is marked, start all brokers as they "
                    "were, and stop them in order"
                )
        yield


def broker_of(log_dirs: Sequence[Path]) -> tuple[str, int]:
    """The cluster's id and the broker's.

    Raises:
        TierError: the folders are of more than one broker, or do not say whose they are.
    """
    found = set()
    for folder in log_dirs:
        lines = _read(folder / _META).decode("utf-8", "replace").splitlines()
        fields = dict(line.split("=", 1) for line in lines if "=" in line)
        node_id = fields.get("node.id", fields.get("broker.id", ""))
        if not node_id.isdecimal() or "cluster.id" not in fields:
            raise TierError(f"{folder / _META} names no broker (node.id, cluster.id): start the broker once before")
        found.add((fields["cluster.id"], int(node_id)))
    if len(found) > 1:
        raise TierError(f"these folders are of more than one broker: {sorted(found)}")
    return found.pop()


def partition_folders(log_dir: Path) -> list[PartitionFolder]:
    """The partitions in a log folder, by name.

    Raises:
        TierError: a partition is on its way to another log folder.
    """
    found = []
    for path in sorted(each for each in log_dir.iterdir() if each.is_dir()):
        if _BEING_MOVED.fullmatch(path.name):
            raise TierError(f"{path} is on its way from another log folder: start the broker, and let it end that")
        name = _FOLDER.fullmatch(path.name)
        metadata = path / "partition.metadata"
        if name is None or not metadata.exists():
            continue  # to be deleted, a stray, or not a partition
        topic_id = _TOPIC_ID.search(_read(metadata).decode("utf-8", "replace"))
        if topic_id is None:
            raise TierError(f"{metadata} has no topic_id: it is not one of Kafka 2.8 or later")
        try:
            known = uuid_from_text(topic_id[1])
        except ValueError as error:
            raise TierError(f"{metadata}: {error}") from error
        found.append(PartitionFolder(path, TopicIdPartition(known, int(name["partition"]), name["topic"])))
    return found


def read_log_starts(log_dir: Path) -> dict[tuple[str, int], int]:
    """Return what `log-start-offset-checkpoint` says, by topic and partition; one that is not named has no log start
    but its first segment's.

    Raises:
        TierError: it is no checkpoint.
    """
    path = log_dir / LOG_STARTS
    if not path.exists():
        return {}
    lines = _read(path).decode("utf-8", "replace").splitlines()
    entries = [_LOG_START.fullmatch(line) for line in lines[2:]]
    if len(lines) < 2 or lines[0] != "0" or lines[1] != str(len(entries)) or None in entries:
        raise TierError(f"{path} is no checkpoint of offsets: start the broker, which writes it again, and stop it")
    return {(entry["topic"], int(entry["partition"])): int(entry["offset"]) for entry in entries if entry is not None}


def encode_log_starts(log_starts: Mapping[tuple[str, int], int]) -> bytes:
    """The content of `log-start-offset-checkpoint`."""
    lines = [f"{topic} {partition} {offset}\n" for (topic, partition), offset in log_starts.items()]
    return f"0\n{len(lines)}\n{''.join(lines)}".encode()


def replace(path: Path, content: bytes) -> None:
    """Give a file other content, and keep the old one beside it. A kill at any moment leaves a whole file."""
    draft, backup = path.with_name(f"{path.name}.tidegate-draft"), path.with_name(path.name + BACKUP_SUFFIX)
    is_new = not path.exists()
    if not is_new:
        _write(draft, path.read_bytes(), path)
        draft.replace(backup)
    _write(draft, content, path.parent if is_new else path)
    draft.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)


def _write(path: Path, content: bytes, like: Path) -> None:
    """A file of the owner that `like` has, or it would be ours, and the broker could not replace it."""
    status = like.stat()
    with path.open("wb") as file:
        file.write(content)
        if (status.st_uid, status.st_gid) != (os.geteuid(), os.getegid()):
            os.fchown(file.fileno(), status.st_uid, status.st_gid)
        if like.is_file():
            shutil.copymode(like, path)
        file.flush()
        os.fsync(file.fileno())


def _read(path: Path) -> bytes:
    try:
        return read_limited(path, CHECKPOINT_BYTES_MAX)
    except UnreadableFileError as error:
        raise TierError(f"{path} {error}") from error


def _end_offset(log: Path) -> int:
    """The offset behind the last whole batch of a segment; a broker allots the file's space before it fills it."""
    next_offset = int(log.stem)
    if log.stat().st_size == 0:
        return next_offset
    with (
        log.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content,
        memoryview(content) as view,
        suppress(CorruptBatchError),
    ):  # the space that is not filled yet
        for _, header in iterate_batches([view]):
            if header.last_offset < next_offset:
                break
            next_offset = header.last_offset + 1
    return next_offset
