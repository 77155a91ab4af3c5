"""Where segments under way are: a folder of our own below `copy.staging.path`, which an operator may name carelessly.

Nothing is removed that a copier did not put there: a partition's folder is `<topic>-<partition>-<topic id>`, and holds
files of segments and nothing else. What else there is stays, and is named once.
"""

import re
from pathlib import Path
from typing import Final

from storage.model import TopicIdPartition, uuid_to_text

OWN_NAME: Final = "tidegate-staging"

_PARTITION = re.compile(r"[A-Za-z0-9._-]{1,249}-[0-9]{1,10}-[A-Za-z0-9_-]{22}")
STAGED: Final = re.compile(r"[0-9]{20}\.(log|index|timeindex|txnindex|snapshot|kept|aborted)")


def partition_folder(staging_path: Path, partition: TopicIdPartition) -> Path:
    """A partition's; nobody else's, also if its topic was deleted and made again."""
    name = f"{partition.topic}-{partition.partition}-{uuid_to_text(partition.topic_id)}"
    return staging_path / OWN_NAME / name


def strangers(staging_path: Path) -> list[Path]:
    """Return what is in our folder and was not staged by a copier: it stays, and so does what was (kept_logs).

    Raises:
        OSError: the folder cannot be made or read.
    """
    own = staging_path / OWN_NAME
    own.mkdir(parents=True, exist_ok=True)
    return [left for left in sorted(own.iterdir()) if not _is_staged(left)]


def remove_if_empty(folder: Path) -> None:
    """A partition's, once nothing is staged in it."""
    if folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()


def _is_staged(folder: Path) -> bool:
    if folder.is_symlink() or not folder.is_dir() or not _PARTITION.fullmatch(folder.name):
        return False
    return all(STAGED.fullmatch(each.name) and each.is_file() and not each.is_symlink() for each in folder.iterdir())
