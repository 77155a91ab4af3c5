"""The zip as users have it: beside modules of their own that are called like our packages."""

import json
import os
import subprocess
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support.spark_cluster import cluster_python
from tests.support.spark_package import USERS_NAMES, users_modules
from tools.spark_package.build import Built
from tools.spark_package.shipped._bundled import OURS

pytestmark = pytest.mark.needs("spark")

PROGRAM = """
import json, sys
import metrics, pipeline, protocol, proxy, storage, table
modules = (metrics, pipeline, protocol, proxy, storage, table)
users = [each.WHOSE for each in modules]

import tidegate
from tidegate.table.tasks import SegmentTask
from tidegate.storage.errors import RemoteStorageError
from tidegate.storage.config.registry import open_remote_storage_manager
import boto3, cryptography.hazmat.bindings._rust, zstandard

print(json.dumps({
    "users": users,
    "modules": [SegmentTask.__module__, RemoteStorageError.__module__],
    "libraries": [boto3.__file__, zstandard.__file__],
    "ours": tidegate.__file__,
    "path": sys.path,
}))
"""


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return cluster_python(tmp_path_factory.mktemp("python"))


def run(python: Path, folder: Path, path: Sequence[Path], program: str = PROGRAM) -> subprocess.CompletedProcess[str]:
    """The program by that Python, with these on sys.path and a temporary folder below `folder`."""
    (folder / "tmp").mkdir(exist_ok=True)
    environ = {"PYTHONPATH": os.pathsep.join(map(str, path)), "TMPDIR": str(folder / "tmp")}
    return subprocess.run([python, "-c", program], cwd=folder, env=environ, capture_output=True, text=True, check=False)


def answer(done: subprocess.CompletedProcess[str]) -> dict[str, list[str]]:
    assert done.returncode == 0, done.stderr
    answered: dict[str, list[str]] = json.loads(done.stdout)
    return answered


def test_users_modules_and_ours_of_the_same_names_both_work(spark_package: Built, python: Path, tmp_path: Path) -> None:
    found = answer(run(python, tmp_path, [spark_package.zip, users_modules(tmp_path / "users")]))
    assert found["users"] == ["the user's"] * len(USERS_NAMES)
    assert found["modules"] == ["tidegate.table.tasks", "tidegate.storage.errors"]
    # Libraries come from the zip, by a private folder that is last on the path.
    folder = found["path"][-1]
    assert Path(folder).parent == tmp_path / "tmp" / f"{OURS}-{os.geteuid()}"
    assert all(name.startswith(folder + "/") for name in found["libraries"])
    assert str(found["ours"]).startswith(str(spark_package.zip))


def test_what_the_cluster_has_already_wins(spark_package: Built, python: Path, tmp_path: Path) -> None:
    clusters = tmp_path / "clusters"
    (clusters / "zstandard-99.0.dist-info").mkdir(parents=True)
    (clusters / "zstandard-99.0.dist-info" / "METADATA").write_text("Name: zstandard\nVersion: 99.0\n")
    (clusters / "zstandard").mkdir()
    (clusters / "zstandard" / "__init__.py").write_text("__version__ = 'the cluster’s'\n")
    program = "import tidegate, zstandard; print(zstandard.__version__)"
    done = run(python, tmp_path, [spark_package.zip, clusters], program)
    assert done.stdout == "the cluster’s\n", done.stderr


def test_without_arrow_on_the_cluster_the_error_says_so(spark_package: Built, tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "bare"], check=True)
    done = run(tmp_path / "bare" / "bin" / "python", tmp_path, [spark_package.zip], "import tidegate.spark")
    assert "pyarrow is missing (pyarrow>=15 is needed)" in done.stderr.splitlines()[-1]


def test_lines_of_a_traceback_are_those_of_the_repository(spark_package: Built, python: Path, tmp_path: Path) -> None:
    program = "from tidegate.storage.config.registry import *\nopen_remote_storage_manager('no', {})"
    done = run(python, tmp_path, [spark_package.zip], program)
    source = Path(__file__).parents[2] / "storage" / "config" / "registry.py"
    lines = source.read_text().splitlines()
    raised = 1 + next(number for number, line in enumerate(lines) if "raise _unknown_name(STORAGE" in line)
    assert f'registry.py", line {raised}, in open_remote_storage_manager' in done.stderr


OLD_NAME = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("default")
    import tidegate_spark
    import tidegate_spark as again
import tidegate.spark
assert tidegate_spark.register is tidegate.spark.register and tidegate_spark.TidegateDataSource
print([each.category.__name__ for each in caught], caught[0].message, caught[0].filename)
print(tidegate_spark.__file__)
"""


def test_the_old_name_works_and_warns_once(spark_package: Built, python: Path, tmp_path: Path) -> None:
    """In the zip, and as a wheel beside Tidegate's own package, which is the zip's here."""
    with zipfile.ZipFile(spark_package.wheel) as wheel:
        modules = [name for name in wheel.namelist() if ".dist-info/" not in name]
        (metadata,) = (wheel.read(name).decode() for name in wheel.namelist() if name.endswith("/METADATA"))
    assert modules == ["tidegate_spark/__init__.py"]
    assert "Requires-Dist" not in metadata
    site = tmp_path / "site"
    options = ["--no-index", "--no-deps", "--quiet", "--disable-pip-version-check", "--target", str(site)]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, spark_package.wheel], check=True)
    said = "['FutureWarning'] tidegate_spark is tidegate.spark now: this name goes with 0.3 <string>"
    for path in ([spark_package.zip], [site, spark_package.zip]):
        done = run(python, tmp_path, path, OLD_NAME)
        assert done.stdout.splitlines() == [said, f"{path[0]}/tidegate_spark/__init__.py"], done.stderr
