"""This tree as if it were released: committed, tagged in a repository of a test's, and what `make release` makes."""

import os
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from tests.repository.sources import FILES
from tests.support.needs import ROOT

VERSION: Final[str] = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["version"]
STEM: Final = f"tidegate-{VERSION}"
COMMITTED: Final = "2026-01-02T03:04:05Z"
"""When the tag's commit was made."""


def git(repository: Path, *words: str) -> None:
    known = {"GIT_AUTHOR_DATE": COMMITTED, "GIT_COMMITTER_DATE": COMMITTED}
    identity = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "init.defaultBranch=main")
    command = ["git", "-C", str(repository), *identity, *words]
    subprocess.run(command, env={**os.environ, **known}, check=True, capture_output=True)


def tagged_repository(folder: Path) -> Path:
    """Commit this tree's files in the folder, under the tag of their version."""
    for path in FILES:
        place = folder / path.relative_to(ROOT)
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_bytes(path.read_bytes())
    changes = folder / "CHANGELOG.md"
    changes.write_text(changes.read_text("utf-8").replace(f"## {VERSION} (not released yet)", f"## {VERSION}", 1))
    git(folder, "init", "--quiet")
    git(folder, "add", "--all")
    git(folder, "commit", "--quiet", "--message", "all of it")
    git(folder, "tag", f"v{VERSION}")
    return folder


def release(
    repository: Path, into: Path, environ: Mapping[str, str], *, options: Sequence[str] = (), mask: int = 0o022
) -> "subprocess.CompletedProcess[str]":
    """`make release` there, with this environment and this mask for new files."""
    command = [sys.executable, "-m", "tools.release", "--into", str(into), *options]
    known = {**environ, "PYTHONPATH": str(repository), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(command, cwd=repository, env=known, umask=mask, capture_output=True, text=True, check=False)
