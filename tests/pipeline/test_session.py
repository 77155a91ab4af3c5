"""What a job says where there can be no Spark session, and what the proxy must not need."""

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from pipeline import session
from tests.support.for_each import for_each

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]


def java(folder: Path, version_line: str) -> Path:
    """A program that answers like a Java; it stands in folder/bin."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!/bin/sh\necho '{version_line}' >&2\n")
    program.chmod(0o755)
    return program


def without(*names: str) -> Callable[[str], ModuleSpec | None]:
    found = importlib.util.find_spec
    return lambda name: None if name in names else found(name)


GOOD, OTHERS = ("17.0.15", "21", "21-ea", "17.0.15+6"), {"1.8.0_392": 8, "11.0.2": 11, "22-ea": 22, "25": 25}


@for_each("version", [*GOOD, *OTHERS])
def test_java_17_and_21_will_do_and_another_is_named_with_its_number(tmp_path: Path, version: str) -> None:
    program = java(tmp_path / version, f'openjdk version "{version}" 2025-04-15')
    problems = session.java_problems({"PATH": str(program.parent)})
    assert len(problems) == (version in OTHERS)
    for problem in problems:
        assert problem.startswith(f"Java 17 or 21 is needed, {program} is {OTHERS[version]}: install it (")
        assert problem.endswith("put it first on PATH")


def test_java_home_comes_before_path(tmp_path: Path) -> None:
    old = java(tmp_path / "old", 'java version "11.0.2"')
    new = java(tmp_path / "new", 'openjdk version "21.0.1"')
    environ = {"JAVA_HOME": str(tmp_path / "old"), "PATH": str(new.parent)}
    (problem,) = session.java_problems(environ)
    assert problem.startswith(f"Java 17 or 21 is needed, {old} is 11: ")
    assert problem.endswith("point JAVA_HOME at it")
    assert session.java_problems({"JAVA_HOME": str(tmp_path / "new"), "PATH": str(old.parent)}) == []


def test_missing_packages_are_named_with_the_command_that_installs_them(monkeypatch: pytest.MonkeyPatch) -> None:
    assert session.missing_packages() == []
    monkeypatch.setattr(importlib.util, "find_spec", without("pyspark", "pyarrow"))
    sentence = "pyspark and pyarrow cannot be imported: pip install 'tidegate[spark]'"
    assert session.missing_packages() == [sentence]
    with pytest.raises(session.SessionError, match="cannot be imported: pip install") as raised:
        session.start_session("a job")
    assert str(raised.value) == sentence


@for_each("module", ["tidegate.cli", "tidegate.serve", "pipeline.session"])
def test_spark_is_not_imported_by(module: str) -> None:
    """Given an installation without the extra, when Tidegate starts, then nothing asks for what is not there."""
    program = f"""
import sys
for name in ("pyspark", "pyarrow", "numpy"):
    sys.modules[name] = None
import {module}
"""
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@for_each("version, is_old", [("3.5.9", True), ("4.0.0", False), ("4.1.0.dev1", False)])
def test_an_older_spark_is_sent_to_the_kafka_source(version: str, is_old: bool) -> None:
    """It said `'SparkSession' object has no attribute 'dataSource'`. Given a session of an older Spark, when our source
    is registered with it, then one sentence says what to read with."""
    older = cast("SparkSession", SimpleNamespace(version=version))
    if is_old:
        with pytest.raises(RuntimeError, match=rf"^Spark {version} knows no Python data sources, .* Kafka source"):
            session.register(older)
    assert bool(session.version_problems(version)) == is_old


class Conf:
    """A session's settings: those that somebody has set."""

    def __init__(self, **given: str) -> None:
        self.getAll = {name.replace("_", "."): value for name, value in given.items()}

    def set(self, name: str, value: str) -> None:
        self.getAll[name] = value


@for_each("is_new, given, found", [(True, None, "true"), (True, "false", "false"), (False, None, None)])
def test_filters_reach_the_source_unless_the_user_said_something_else(
    monkeypatch: pytest.MonkeyPatch, is_new: bool, given: str | None, found: str | None
) -> None:
    """Nothing set it, and `where` read everything. Given a Spark that can, when our source is registered, then the
    setting is on; one of the user's is left alone, and a Spark that cannot gets none."""
    from pyspark.sql.datasource import DataSourceReader

    monkeypatch.delattr(DataSourceReader, "pushFilters", raising=False)
    if is_new:
        monkeypatch.setattr(DataSourceReader, "pushFilters", lambda _self, filters: filters, raising=False)
    key, registered = "spark.sql.python.filterPushdown.enabled", list[type]()
    conf = Conf() if given is None else Conf(**{key.replace(".", "_"): given})
    found_source = SimpleNamespace(register=registered.append)
    session.register(cast("SparkSession", SimpleNamespace(version="4.1.0", conf=conf, dataSource=found_source)))
    assert conf.getAll.get(key) == found
    assert [each.__name__ for each in registered] == ["TidegateDataSource"]


@for_each(
    "master, environ, conf, is_set",
    [
        ("local[2]", {}, Conf(), True),
        ("local[2]", {"PYSPARK_PYTHON": "/a/python"}, Conf(), False),
        ("local[2]", {}, Conf(spark_pyspark_python="/a/python"), False),
        ("spark://host:7077", {}, Conf(), False),
    ],
)
def test_workers_on_this_machine_run_this_python(
    monkeypatch: pytest.MonkeyPatch, master: str, environ: dict[str, str], conf: Conf, is_set: bool
) -> None:
    """A newcomer's first error was `No module named 'pyarrow'`: of the first python3 on PATH."""
    monkeypatch.delenv("PYSPARK_PYTHON", raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    context = SimpleNamespace(master=master, pythonExec="python3")
    source = SimpleNamespace(register=lambda _: None)
    made = SimpleNamespace(version="4.0.0", conf=conf, dataSource=source, sparkContext=context)
    session.register(cast("SparkSession", made))
    assert context.pythonExec == (sys.executable if is_set else "python3")
