"""What `tidegate.scan` has in memory when it is imported: nothing that only some scans need."""

import subprocess
import sys

_LOADED = "import sys, tidegate; tidegate.scan; print(*sys.modules)"
_OTHERS = (
    *(
        "Crypto",
        "azure",
        "boto3",
        "botocore",
        "cffi",
        "confluent_kafka",
        "cryptography",
        "duckdb",
        "fastavro",
        "google",
    ),
    *("google", "h11", "javaproperties", "kio", "pandas", "polars", "prometheus_client", "pyarrow.compute"),
    *("pyarrow.parquet", "pyspark", "requests", "sqlglot", "storage.formats.aiven", "table.values", "trio", "urllib3"),
)


def test_the_import_loads_nothing_that_only_some_scans_need() -> None:
    """A third of its time were the ciphers of a format that the tier did not have."""
    done = subprocess.run([sys.executable, "-c", _LOADED], check=True, capture_output=True, text=True)
    assert sorted(set(_OTHERS).intersection(done.stdout.split())) == []
