"""What `tidegate.scan` has in memory when it is imported: nothing that only some scans need."""

from tests.support.program import loaded_by

_OTHERS = """
    Crypto azure boto3 botocore cffi confluent_kafka cryptography duckdb fastavro google h11 javaproperties kio pandas
    polars prometheus_client pyarrow.compute pyarrow.parquet pyspark requests sqlglot storage.formats.aiven
    storage.object_store.s3.store table.values trio urllib3
"""


def test_the_import_loads_nothing_that_only_some_scans_need() -> None:
    """A third of its time were the ciphers of a format that the tier did not have."""
    assert loaded_by("import tidegate; tidegate.scan").isdisjoint(_OTHERS.split())
