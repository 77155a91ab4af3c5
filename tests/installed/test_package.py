"""What the wheel and the source distribution hold, and what is installed of them."""

import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

from tests.support.built import STRANGERS, Installed, build_with
from tests.support.needs import ROOT
from tidegate import cli

IMPORT_ALL = f"""
import importlib, pkgutil, sys
strangers = {STRANGERS!r}
assert {{importlib.import_module(name).WHOSE for name in strangers}} == {{"a stranger's"}}
import tidegate
lacking = set()
for module in pkgutil.walk_packages(tidegate.__path__, "tidegate."):
    if module.name != "tidegate.__main__":
        try:
            importlib.import_module(module.name)
        except ModuleNotFoundError as error:
            lacking.add(error.name.partition(".")[0])
print(*sorted(lacking))
"""
OF_EXTRAS = {
    "azure",
    "confluent_kafka",
    "duckdb",
    "google",
    "msgspec",
    "numpy",
    "py4j",
    "polars",
    "pyarrow",
    "pyspark",
    "requests",
}


def run(installed: Installed, *words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([installed.python, *words], capture_output=True, text=True, check=False)


def modules_of_the_tree() -> set[str]:
    """As they are called in the wheel."""
    found = {path.relative_to(ROOT).as_posix() for name in STRANGERS for path in (ROOT / name).rglob("*.py")}
    return {f"tidegate/{name}" for name in found} | {
        path.relative_to(ROOT).as_posix() for path in (ROOT / "tidegate").rglob("*.py")
    }


def test_the_wheel_holds_one_package_and_nothing_else(installed: Installed) -> None:
    """Failed before: seven, of which six had names that others have, too."""
    names = set(zipfile.ZipFile(installed.wheel).namelist())
    metadata = {name for name in names if name.startswith("tidegate-") and ".dist-info/" in name}
    expected = {"LICENSE", "METADATA", "RECORD", "WHEEL", "entry_points.txt", "top_level.txt"}
    assert {name.rpartition("/")[2] for name in metadata} == expected
    files = {name for name in names if name.startswith("tidegate/files/")}
    assert names - metadata - files == modules_of_the_tree() | {"tidegate/py.typed"}


def test_the_source_distribution_makes_the_same_wheel_to_the_byte(installed: Installed, tmp_path: Path) -> None:
    """By pip, from what somebody has unpacked on another day under another mask; and it holds no test."""
    made = build_with(Path(sys.executable), ROOT, "sdist", tmp_path / "sdist")
    with tarfile.open(made) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {name.partition("/")[0] for name in names} == {
        *("CHANGELOG.md", "LICENSE", "PKG-INFO", "README.md", "deploy", "pyproject.toml", "tidegate", "tools"),
        *STRANGERS,
    }
    assert not [name for name in names if name.startswith("tools/") and not name.startswith("tools/distribution/")]
    options = ["--no-index", "--no-deps", "--no-build-isolation", "--quiet", "--disable-pip-version-check"]
    command: list[str | Path] = [
        sys.executable,
        "-m",
        "pip",
        "wheel",
        *options,
        "--wheel-dir",
        tmp_path / "wheel",
        made,
    ]
    subprocess.run(command, check=True, umask=0o077)
    assert (tmp_path / "wheel" / installed.wheel.name).read_bytes() == installed.wheel.read_bytes()


def test_all_of_it_is_imported_beside_strangers_of_our_names(installed: Installed) -> None:
    """What cannot be is what an extra brings; without `copy` that is confluent-kafka, too."""
    done = subprocess.run([installed.python, "-c", IMPORT_ALL], env={}, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "confluent_kafka" in done.stdout
    assert set(done.stdout.split()) <= OF_EXTRAS


def test_without_the_extra_copying_says_what_it_lacks(installed: Installed, tmp_path: Path) -> None:
    """Failed before: nothing could be installed without librdkafka."""
    file = tmp_path / "tidegate.properties"
    file.write_text(
        "mode=standalone\nupstream.bootstrap.servers=127.0.0.1:1\ncopy.topics=orders\nadmin.listen=127.0.0.1:0\n"
        f"remote.log.storage.manager.class.name=tidegate.PlainObjects\ncache.path={tmp_path}/cache\n"
    )
    said = "needs the package confluent-kafka, which is not installed: pip install 'tidegate[copy]'"
    for words in (("copy", file, "--once"), ("serve", file)):
        command = [installed.python, "-m", "tidegate", *words]
        environ = {"TIDEGATE_COPY_ENABLED": "true"}
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=False)
        assert (done.returncode, said in done.stderr) == (2, True), done.stderr


def test_files_lays_out_what_goes_with_the_program(installed: Installed, tmp_path: Path) -> None:
    done = run(installed, "-m", "tidegate", "files", tmp_path / "prefix")
    assert (done.returncode, done.stderr) == (0, "")
    laid = {path for path in (tmp_path / "prefix").rglob("*") if path.is_file()}
    assert {Path(line) for line in done.stdout.splitlines()} == laid
    unit = tmp_path / "prefix" / "lib" / "systemd" / "system" / "tidegate.service"
    assert unit.read_bytes() == (ROOT / "deploy" / "systemd" / "tidegate.service").read_bytes()
    page = (tmp_path / "prefix" / "share" / "man" / "man1" / "tidegate.1").read_text("utf-8")
    assert all(f'"tidegate {command.name}"' in page for command in cli.COMMANDS)
    assert {path.suffix for path in laid} == {"", ".1", ".conf", ".fish", ".json", ".service", ".yml"}
    (tmp_path / "file").write_text("")
    refused = run(installed, "-m", "tidegate", "files", tmp_path / "file")
    assert (refused.returncode, refused.stderr.count("\n")) == (1, 1)
