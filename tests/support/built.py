"""What this tree's own build back end makes of it, and Tidegate installed from that."""

import importlib.metadata
import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.support.needs import ROOT

_BUILD = "import sys; from tools.distribution import backend; getattr(backend, 'build_' + sys.argv[1])(sys.argv[2])"
STRANGERS = ("metrics", "pipeline", "protocol", "proxy", "standalone", "storage", "table")
"""Other people's packages, called as ours are in the tree."""


def build_with(python: Path, tree: Path, kind: str, into: Path, **environ: str) -> Path:
    """The wheel or the sdist of a tree, by its own back end, as every installer calls it."""
    into.mkdir()
    done = subprocess.run(
        [python, "-c", _BUILD, kind, into],
        cwd=tree,
        env={"PATH": os.defpath, "PYTHONPATH": str(tree), **environ},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    (built,) = into.iterdir()
    return built


def wheel_of_the_tree(folder: Path) -> Path:
    return build_with(Path(sys.executable), ROOT, "wheel", folder / "dist")


@dataclass(frozen=True, slots=True)
class Installed:
    """`python`: the environment's. `extra`: a folder for PYTHONPATH, with what the extra `copy` brings."""

    wheel: Path
    python: Path
    extra: Path


def install(wheel: Path, folder: Path) -> Installed:
    """An environment with the wheel, what it requires and no more, and beside it packages called like those of ours.
    The libraries are those of the running tests, so that nothing is fetched."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    [site] = folder.glob("lib/python3*/site-packages")
    python = folder / "bin" / "python"
    options = ["--no-index", "--no-deps", "--quiet", "--disable-pip-version-check", "--no-compile"]
    subprocess.run([sys.executable, "-m", "pip", "--python", python, "install", *options, wheel], check=True)
    for name in STRANGERS:
        (site / f"{name}.py").write_text('WHOSE = "a stranger\'s"\n')
    (folder / "extra").mkdir()
    lock = (ROOT / "requirements" / "run.txt").read_text("utf-8")
    for name in sorted({*re.findall(r"^([\w.-]+)==", lock, re.MULTILINE)} - {"setuptools"}):
        link(name, folder / "extra" if name == "confluent-kafka" else site)
    return Installed(wheel, python, folder / "extra")


def link(name: str, folder: Path) -> None:
    """One of the running tests' libraries into a folder of sys.path, unless it is one of another platform's lock."""
    try:
        distribution = importlib.metadata.distribution(name)
    except importlib.metadata.PackageNotFoundError:
        return
    for top in {file.parts[0] for file in distribution.files or ()} - {"..", "__pycache__"}:
        (folder / top).symlink_to(Path(str(distribution.locate_file(top))))


def main(folder: Path) -> None:
    """Do what `make test-installed` does first."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    print(install(wheel_of_the_tree(folder), folder / "environment").python)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
