"""TLS to the store on each Python of the matrix: OpenSSL's object lies where CPython of that version keeps it."""

import subprocess

import pytest

from tests.support.needs import OTHER_PYTHONS, ROOT

SUITES = ("test_tls_records.py", "test_idle_tls.py")


@pytest.mark.parametrize(
    "version", [pytest.param(version, marks=pytest.mark.needs(f"python-{version}")) for version in OTHER_PYTHONS]
)
def test_tls_to_the_store(version: str) -> None:
    python = ROOT / "build" / f"python-{version}" / "venv" / "bin" / "python"
    suites = [f"tests/storage/object_store/{name}" for name in SUITES]
    done = subprocess.run(
        # One store's SDK is enough: what differs is below them all.
        [python, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "not gcs and not azure", *suites],
        cwd=ROOT,
        capture_output=True,
        check=False,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-1000:]
