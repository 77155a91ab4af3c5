"""What unpacks the zip's libraries on a cluster: tools/spark_package/shipped/_bundled.py."""

import hashlib
import importlib
import json
import os
import stat
import sys
import zipfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tools.spark_package.shipped._bundled import (
    OURS,
    PACKAGE,
    Bundle,
    LibrariesError,
    make_importable,
    private_folder,
    unmet_needs,
    unpacked,
)

FILES = {"lib/__init__.py": b"WHO = 'ours'\n", "lib/native.so": b"\x7fELF" * 100, "lib-2.0.dist-info/METADATA": b""}


def archive(folder: Path) -> tuple[Path, Bundle]:
    """A zip that has these libraries, and its description."""
    path = folder / "ours.zip"
    with zipfile.ZipFile(path, "w") as target:
        for name, data in FILES.items():
            target.writestr(f"{PACKAGE}/_bundle/{name}", data)
    digest = hashlib.sha256(repr(FILES).encode()).hexdigest()
    return path, bundle(digest=digest, files=[(name, len(data)) for name, data in FILES.items()])


def bundle(
    *,
    digest: str = "0" * 64,
    bundled: dict[str, str] | None = None,
    needs: Sequence[tuple[str, str, Sequence[tuple[str, str]]]] = (),
    files: Sequence[tuple[str, int]] = (),
) -> Bundle:
    return Bundle("3.11", "linux-x86_64", digest, bundled or {}, needs, files)


def distribution(folder: Path, name: str, version: str) -> None:
    """An installed library, as far as its metadata goes."""
    metadata = folder / f"{name}-{version}.dist-info" / "METADATA"
    metadata.parent.mkdir(parents=True)
    metadata.write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    return folder


def test_everything_is_unpacked_once_into_a_folder_of_the_user_alone(tmp_path: Path, parent: Path) -> None:
    path, of_path = archive(tmp_path)
    folder = unpacked(path, of_path, [parent])
    assert {str(file.relative_to(folder)): file.read_bytes() for file in folder.rglob("*") if file.is_file()} == FILES
    assert folder.parent == parent / f"{OURS}-{os.geteuid()}"
    assert stat.S_IMODE(folder.parent.stat().st_mode) == 0o700
    path.unlink()
    assert unpacked(path, of_path, [parent]) == folder


def test_files_that_a_cleaner_took_away_are_unpacked_again(tmp_path: Path, parent: Path) -> None:
    path, of_path = archive(tmp_path)
    native = unpacked(path, of_path, [parent]) / "lib" / "native.so"
    for damage in (native.unlink, lambda: native.write_bytes(b"")):
        damage()
        unpacked(path, of_path, [parent])
        assert native.read_bytes() == FILES["lib/native.so"]


def test_many_at_once_get_the_same_whole_folder_and_only_that_is_left(tmp_path: Path, parent: Path) -> None:
    path, of_path = archive(tmp_path)
    (private_folder(parent) / ".unpacking-left").mkdir()  # by a process that was killed
    with ThreadPoolExecutor(8) as pool:
        folders = set(pool.map(lambda _: unpacked(path, of_path, [parent]), range(32)))
    assert len(folders) == 1
    assert sorted(entry.name for entry in folders.pop().parent.iterdir()) == sorted([of_path.digest[:32], "lock"])


def test_a_folder_that_others_may_have_written_to_is_refused(parent: Path) -> None:
    folder = private_folder(parent)
    folder.chmod(0o770)
    with pytest.raises(PermissionError, match="has mode 770, so others may have written to it"):
        private_folder(parent)


def test_a_folder_of_another_user_is_refused(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    planted = parent / f"{OURS}-12345"
    planted.mkdir(mode=0o700)
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    with pytest.raises(PermissionError, match=f"belongs to user {planted.stat().st_uid}, not to us"):
        private_folder(parent)


def test_a_link_to_a_folder_is_refused_even_one_of_our_own(parent: Path, tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o700)
    (parent / f"{OURS}-{os.geteuid()}").symlink_to(target)
    with pytest.raises(PermissionError, match="is not a folder"):
        private_folder(parent)


def test_the_next_folder_serves_or_the_error_says_why_each_is_refused(tmp_path: Path, parent: Path) -> None:
    (parent / f"{OURS}-{os.geteuid()}").write_bytes(b"planted")
    second = tmp_path / "second"
    second.mkdir()
    assert second in unpacked(*archive(tmp_path), [parent, second]).parents
    with pytest.raises(LibrariesError) as caught:
        unpacked(*archive(tmp_path), [parent, tmp_path / "nowhere"])
    assert "is not a folder" in str(caught.value)
    assert f"{tmp_path / 'nowhere'}: [Errno 2]" in str(caught.value)


COMPARED: list[tuple[str, list[tuple[str, str]], bool]] = [
    ("1.2.3", [(">=", "1.2")], True),
    ("1.10", [(">=", "1.9")], True),
    ("1.2", [(">=", "1.2.0")], True),
    ("2.9.post0", [(">=", "2.7"), ("<", "3")], True),
    ("1.2", [(">=", "1.3")], False),
    ("3.0rc1", [("<", "3")], False),
    ("2.2.0", [("!=", "2.2")], False),
    ("2.0", [("==", "2"), ("<=", "2"), (">", "1")], True),
]


def test_a_version_is_compared_by_its_numbers_and_a_library_that_is_nowhere_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number, (version, comparisons, is_met) in enumerate(COMPARED):
        name, site = f"tidegate-test-{number}", tmp_path / str(number)
        distribution(site, name.replace("-", "_"), version)
        monkeypatch.syspath_prepend(site)
        wanted = name + ",".join(sign + number for sign, number in comparisons)
        said = [] if is_met else [f"{name} {version} is in {site}, {wanted} is needed"]
        assert unmet_needs(bundle(needs=[(OURS, name, comparisons)]), tmp_path / "ours") == said
    of_ours = bundle(needs=[(OURS, "tidegate-nowhere", [(">=", "1")])])
    assert unmet_needs(of_ours, tmp_path) == ["tidegate-nowhere is missing (tidegate-nowhere>=1 is needed)"]


def test_what_a_bundled_library_needs_counts_only_while_that_one_is_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, clusters = tmp_path / "ours", tmp_path / "clusters"
    distribution(ours, "tidegate_test_a", "2.0")
    distribution(clusters, "tidegate_test_b", "1.0")
    monkeypatch.setattr(sys, "path", [str(clusters), *sys.path, str(ours)])
    importlib.invalidate_caches()
    of_ours = bundle(bundled={"tidegate-test-a": "2.0"}, needs=[("tidegate-test-a", "tidegate-test-b", [(">=", "2")])])
    (problem,) = unmet_needs(of_ours, ours)
    assert problem.endswith("tidegate-test-b>=2 is needed by tidegate-test-a")
    distribution(clusters, "tidegate_test_a", "1.0")
    importlib.invalidate_caches()
    assert unmet_needs(of_ours, ours) == []


def test_a_zip_for_another_python_or_platform_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    here = f"{sys.version_info[0]}.{sys.version_info[1]}"
    for python, platform, said in (
        ("2.7", "linux-x86_64", "is for Python 2.7 on"),
        (here, "plan9-mips", "on plan9-mips, and"),
    ):
        whole = {"python": python, "platform": platform, "digest": "", "bundled": {}, "needs": [], "files": []}
        monkeypatch.setattr("tools.spark_package.shipped._bundled._description", json.dumps(whole).encode)
        with pytest.raises(LibrariesError) as caught:
            make_importable()
        assert said in str(caught.value)
