"""The package for Spark, built twice."""

from pathlib import Path

import pytest

from tools.spark_package.build import LAUNCHER, Built, build

pytestmark = pytest.mark.needs("spark")


def test_the_same_sources_are_the_same_bytes(spark_package: Built, tmp_path: Path) -> None:
    again = build(tmp_path)
    for path, other in ((spark_package.wheel, again.wheel), (spark_package.zip, again.zip)):
        assert path.name == other.name
        assert path.read_bytes() == other.read_bytes()
    assert again.launcher.name == LAUNCHER
