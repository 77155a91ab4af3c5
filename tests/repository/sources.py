"""The repository's own files, as git knows them, and how a rule about them fails."""

import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("metrics", "pipeline", "protocol", "proxy", "standalone", "storage", "table", "tidegate")


def project_files() -> list[Path]:
    """Return what git tracks or would track. A tree without git (a source archive) is taken whole but for hidden
    folders."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        found = (path for path in ROOT.rglob("*") if path.is_file())
        skipped = (".venv", "build", "dist")
        return [path for path in found if path.relative_to(ROOT).parts[0] not in skipped]
    return [ROOT / name for name in sorted(listed.decode().split("\0")) if name and (ROOT / name).is_file()]


FILES = project_files()
PYTHON_FILES = [path for path in FILES if path.suffix == ".py"]
PACKAGE_FILES = [path for path in PYTHON_FILES if path.relative_to(ROOT).parts[0] in PACKAGES]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def none_of(found: list[str], what: str = "") -> None:
    """Fail with every finding on a line of its own; an assert would cut the list short."""
    if found:
        pytest.fail("\n".join([*([what] if what else []), *found]), pytrace=False)
