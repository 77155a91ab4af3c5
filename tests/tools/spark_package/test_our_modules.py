from pathlib import Path

import pytest

from tools.spark_package.our_modules import ShippedModules, UnshippableImport, shipped_modules


def tree(folder: Path, **sources: str) -> ShippedModules:
    """Modules of storage and pipeline, by dotted name with __ for the dot."""
    for name, source in {"pipeline": "", "storage": "", **sources}.items():
        parts = name.split("__")
        path = folder.joinpath(*parts[:-1], f"{parts[-1]}.py") if len(parts) > 1 else folder / name / "__init__.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(source)
    return shipped_modules(folder, start="pipeline", shipped=("pipeline", "storage"), ours=("proxy", "metrics"))


def test_all_of_the_pipeline_is_shipped_and_of_the_rest_what_it_reaches(tmp_path: Path) -> None:
    shipped = tree(
        tmp_path,
        pipeline__job="from storage.model import A",
        pipeline__other="",
        storage__model="def f():\n    from storage import errors",
        storage__errors="import zlib, zstandard.backend",
        storage__reader="import trio",
    )
    names = ["pipeline", "pipeline.job", "pipeline.other", "storage", "storage.errors", "storage.model"]
    assert list(shipped.sources) == names
    assert shipped.libraries == {"zstandard": "storage.errors"}


def test_an_import_for_types_alone_is_not_followed(tmp_path: Path) -> None:
    source = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from proxy import a\n    import mypy_boto3_s3\n"
    shipped = tree(tmp_path, pipeline__job=source + "else:\n    import lz4\n")
    assert shipped.libraries == {"lz4": "pipeline.job"}


def test_a_name_made_at_run_time_brings_every_module_that_it_may_be(tmp_path: Path) -> None:
    for source in ('importlib.import_module("storage.late")', 'importlib.import_module(f"storage.{kind}")'):
        assert "storage.late" in tree(tmp_path, pipeline__job=source, storage__late="").sources


def test_what_cannot_be_shipped_fails_and_names_the_way(tmp_path: Path) -> None:
    with pytest.raises(UnshippableImport, match=r"storage\.cached imports metrics\.meters, which is not for executors"):
        tree(tmp_path / "a", pipeline__job="import storage.cached as c", storage__cached="from metrics.meters import P")
    with pytest.raises(UnshippableImport, match=r"pipeline\.job imports storage\.gone\.A, which does not exist"):
        tree(tmp_path / "b", pipeline__job="from storage.gone import A")
    # A zip has no such packages.
    with pytest.raises(UnshippableImport, match=r"pipeline\.jobs\.stats is in a folder without __init__\.py"):
        tree(tmp_path / "c", pipeline__jobs__stats="")
