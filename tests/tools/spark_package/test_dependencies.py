from pathlib import Path

import pytest

from tools.spark_package.build import ROOT
from tools.spark_package.dependencies import Dependencies, DependencyError, Need, dependencies_of

PYPROJECT = ROOT / "pyproject.toml"


def of(*libraries: str, with_arrow: bool = False) -> Dependencies:
    return dependencies_of(dict.fromkeys(libraries, "pipeline.job"), PYPROJECT, with_arrow=with_arrow)


def pyproject(folder: Path, *requirements: str) -> Path:
    path = folder / "pyproject.toml"
    path.write_text(f"[project]\ndependencies = {[*requirements]!r}\n[project.optional-dependencies]\nspark = []\n")
    return path


def test_a_library_that_pyproject_does_not_name_fails_and_says_who_imports_it() -> None:
    with pytest.raises(DependencyError, match=r"pipeline\.job imports pytest: pytest is not in pyproject\.toml"):
        of("pytest")
    with pytest.raises(DependencyError, match=r"pipeline\.job imports nowhere, which is not installed"):
        of("nowhere")


def test_spark_is_never_asked_for_and_arrow_is_bundled_on_request_only() -> None:
    without = of("pyspark", "pyarrow", "numpy", "crc32c")
    assert {*without.bundled} == {"crc32c"}
    assert [need.dependency for need in without.needs] == ["crc32c", "numpy", "pyarrow"]
    assert not any("pyspark" in need.dependency for need in without.needs)
    assert {*of("pyarrow", "numpy", with_arrow=True).bundled} == {"numpy", "pyarrow"}


def test_the_clients_of_other_stores_are_bundled_on_request_only() -> None:
    libraries = dict.fromkeys(("azure", "google", "requests", "boto3"), "storage.job")
    without = dependencies_of(libraries, PYPROJECT, with_arrow=False)
    assert not {name for name in without.bundled if name.startswith(("azure", "google", "requests"))}
    assert {need.requirer for need in without.needs} <= {"tidegate_spark", *without.bundled}
    for store, packages in {"gcs": {"google-cloud-storage"}, "azure": {"azure-storage-blob", "azure-identity"}}.items():
        found = dependencies_of(libraries, PYPROJECT, with_arrow=False, stores=[store])
        assert {*found.bundled} >= {*packages, "requests", "urllib3"}


COMPARISONS: dict[str, tuple[tuple[str, str], ...]] = {
    "six>=1.5": ((">=", "1.5"),),
    "six~=1.4": ((">=", "1.4"), ("<", "2")),
    "six~=1.4.2": ((">=", "1.4.2"), ("<", "1.5")),
    "six==1.*": ((">=", "1"), ("<", "2")),
    "six!=1.2,<3": (("!=", "1.2"), ("<", "3")),
    "six": (),
}


def test_what_is_asked_of_a_version_travels_as_plain_comparisons_or_fails(tmp_path: Path) -> None:
    for written, comparisons in COMPARISONS.items():
        found = dependencies_of({"six": "pipeline.job"}, pyproject(tmp_path, written), with_arrow=False)
        assert found.needs == (Need("tidegate_spark", "six", comparisons),), written
    with pytest.raises(DependencyError, match="cannot carry the comparison ===1"):
        dependencies_of({"six": "pipeline.job"}, pyproject(tmp_path, "six===1"), with_arrow=False)
