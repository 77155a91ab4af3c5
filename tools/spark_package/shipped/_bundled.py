"""Makes the libraries importable that the zip for `--py-files` brings. In a wheel there are none: pip saw to them.

Native modules cannot be imported from a zip, so all of it is unpacked, once per machine, user and content. Rules:
1. The libraries go to the END of sys.path. What the cluster has already wins: its other programs in this process were
   tested with it, and half of one version with half of another is worse than either. What is too old for us is one
   error that names library, version found and version needed.
2. The folder is below the machine's temporary folder (else one of Spark's local folders), private to the user: mode
   0700, owned by us, no link. Whatever else is found in its place may be planted, and is not used.
3. One process unpacks, others wait for its lock. The content's digest is the folder's name, and it gets that name when
   it is whole. Files that a cleaner of old files took away are noticed, and it is unpacked again.

Standard library only, and nothing of ours: it runs before anything else is there.
"""

import contextlib
import fcntl
import importlib
import importlib.metadata
import importlib.util
import json
import operator
import os
import pkgutil
import re
import shutil
import stat
import sys
import sysconfig
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

OURS = "tidegate_spark"
"""The zip's name."""
PACKAGE = "tidegate"
"""Where in the zip this module and the libraries are."""
_DESCRIPTION = "_bundle.json"
_FOLDER = "_bundle"
_DIGEST_CHARACTERS = 32
_UNFINISHED = ".unpacking-"

_COMPARISONS: Mapping[str, Callable[[tuple[int, ...], tuple[int, ...]], bool]] = {
    ">=": operator.ge,
    "<=": operator.le,
    ">": operator.gt,
    "<": operator.lt,
    "==": operator.eq,
    "!=": operator.ne,
}


class LibrariesError(ImportError):
    """A library that we need is missing or of the wrong version here, or ours cannot be unpacked."""


@dataclass(frozen=True, slots=True)
class Bundle:
    """What the zip says of itself."""

    python: str
    platform: str
    digest: str
    bundled: Mapping[str, str]
    """Distribution → version."""
    needs: Sequence[tuple[str, str, Sequence[tuple[str, str]]]]
    """Requirer, distribution, comparisons (operator, version)."""
    files: Sequence[tuple[str, int]]
    """Path below the folder, bytes."""


def make_importable() -> None:
    """Does nothing in a wheel, and nothing the second time.

    Raises:
        LibrariesError: see there.
    """
    description = _description()
    if description is None:
        return
    bundle = Bundle(**json.loads(description))
    here = f"{sys.version_info[0]}.{sys.version_info[1]}", sysconfig.get_platform()
    if here != (bundle.python, bundle.platform):
        raise LibrariesError(
            f"this {OURS} zip is for Python {bundle.python} on {bundle.platform}, and {sys.executable} is Python "
            f"{here[0]} on {here[1]}: build one there with `make spark-package`, or install the wheel"
        )
    folder = _libraries_folder(bundle)
    if str(folder) not in sys.path:
        sys.path.append(str(folder))
        importlib.invalidate_caches()
    if problems := unmet_needs(bundle, folder):
        raise LibrariesError(f"{OURS} cannot run in {sys.executable}: {'; '.join(problems)}")


def unmet_needs(bundle: Bundle, folder: Path) -> list[str]:
    """Return what is missing or of a wrong version among the libraries that this process would import, as sentences."""
    problems = []
    found = {name: _found(name) for name in sorted({name for _, name, _ in bundle.needs})}
    for requirer, name, comparisons in bundle.needs:
        distribution = found[name]
        if requirer in bundle.bundled and not _is_ours(found.get(requirer) or _found(requirer), folder):
            continue  # the cluster's own is used, and what that needs is the cluster's affair
        wanted = ",".join(sign + version for sign, version in comparisons)
        for_whom = "" if requirer == OURS else f" by {requirer}"
        if distribution is None:
            # Some clusters have a library without its metadata; a version nobody can tell is not held against them.
            if importlib.util.find_spec(name.replace("-", "_")) is None:
                problems.append(f"{name} is missing ({name}{wanted} is needed{for_whom})")
            continue
        release = _release(distribution.version)
        if not all(_COMPARISONS[sign](release, _release(version)) for sign, version in comparisons):
            place = distribution.locate_file("")
            problems.append(f"{name} {distribution.version} is in {place}, {name}{wanted} is needed{for_whom}")
    return problems


def unpacked(archive: Path, bundle: Bundle, parents: Sequence[Path]) -> Path:
    """The folder with the libraries, in the first of `parents` that will do.

    Raises:
        LibrariesError: none will do; the message says why of each.
    """
    refused = []
    for parent in parents:
        try:
            private = private_folder(parent)
            return _unpacked_in(private, archive, bundle)
        except (OSError, zipfile.BadZipFile) as error:
            refused.append(f"{parent}: {error}")
    raise LibrariesError(f"{OURS} finds no folder to unpack its libraries to: {'; '.join(refused)}")


def private_folder(parent: Path) -> Path:
    """A folder below `parent` that nobody else can have written to; made when it is not there.

    Raises:
        OSError: it cannot be made, or is there and not ours alone.
    """
    folder = parent / f"{OURS}-{os.geteuid()}"
    with contextlib.suppress(FileExistsError):  # looked at below, like one that we made
        folder.mkdir(mode=0o700)
    found = folder.lstat()
    if not stat.S_ISDIR(found.st_mode):
        raise PermissionError(f"{folder} is not a folder")
    if found.st_uid != os.geteuid():
        raise PermissionError(f"{folder} belongs to user {found.st_uid}, not to us")
    if found.st_mode & 0o077:
        raise PermissionError(f"{folder} has mode {stat.S_IMODE(found.st_mode):o}, so others may have written to it")
    return folder


def _description() -> bytes | None:
    try:
        return pkgutil.get_data(__package__, _DESCRIPTION)
    except OSError:
        return None  # the wheel has none


def _libraries_folder(bundle: Bundle) -> Path:
    beside = Path(__file__).with_name(_FOLDER)
    if beside.is_dir():
        return beside  # somebody unpacked the whole zip, `--archives` for one
    archive = Path(__file__).parent.parent
    # Spark's own folders are the second choice: they are of one executor each, and go with it.
    local = [Path(name) for name in os.environ.get("SPARK_LOCAL_DIRS", "").split(",") if name]
    return unpacked(archive, bundle, [Path(tempfile.gettempdir()), *local])


def _unpacked_in(private: Path, archive: Path, bundle: Bundle) -> Path:
    folder = private / bundle.digest[:_DIGEST_CHARACTERS]
    if _is_whole(folder, bundle):
        return folder
    with _lock(private / "lock"):
        if _is_whole(folder, bundle):
            return folder
        for left in private.glob(_UNFINISHED + "*"):  # we hold the lock, so its owner was killed
            shutil.rmtree(left, ignore_errors=True)
        fresh = Path(tempfile.mkdtemp(prefix=_UNFINISHED, dir=private))
        try:
            _extract(archive, bundle, fresh)
            if folder.exists():
                folder.rename(fresh.with_name(fresh.name + "-old"))
            fresh.rename(folder)
        finally:
            for left in private.glob(_UNFINISHED + "*"):
                shutil.rmtree(left, ignore_errors=True)
    return folder


def _is_whole(folder: Path, bundle: Bundle) -> bool:
    try:
        return all(os.stat(f"{folder}/{name}").st_size == size_bytes for name, size_bytes in bundle.files)
    except FileNotFoundError:
        return False


def _extract(archive: Path, bundle: Bundle, folder: Path) -> None:
    with zipfile.ZipFile(archive) as source:
        for name, _ in bundle.files:
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(source.read(f"{PACKAGE}/{_FOLDER}/{name}"))


@contextlib.contextmanager
def _lock(path: Path) -> Iterator[None]:
    """The kernel gives it back when we are killed."""
    with path.open("ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _found(name: str) -> importlib.metadata.Distribution | None:
    try:
        return importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return None


def _is_ours(distribution: importlib.metadata.Distribution | None, folder: Path) -> bool:
    return distribution is not None and Path(str(distribution.locate_file(""))) == folder


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a version without zeros at the end: 2.0.post1 is (2,)."""
    match = re.match(r"v?(\d+(?:\.\d+)*)", version)
    numbers = [int(number) for number in match[1].split(".")] if match else [0]
    while numbers and numbers[-1] == 0:
        numbers.pop()
    return tuple(numbers)
