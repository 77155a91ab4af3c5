"""How Spark commits to `s3a://`: with the magic committer, where its classes are on the class path.

A rename in S3 is a copy of the object, and readers see each copied file at once. The magic committer uploads each file
to where it belongs and completes the uploads when the job commits. It comes with Hadoop's S3A client; what binds Spark
to it is Spark's module hadoop-cloud. Without that module the job works, by copies, and says so.

Jobs side by side must not end each other's uploads, which is what a committer does by default when its job ends. Then
uploads that a killed driver left stay until the bucket's own lifecycle rule for incomplete uploads ends them.
"""

from collections.abc import Mapping
from typing import Any, Final

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from pipeline.jobs.job_context import UsageError

SCHEME: Final = "s3a"
FILE_SYSTEM_CLASS: Final = "org.apache.hadoop.fs.s3a.S3AFileSystem"
COMMIT_PROTOCOL: Final = "org.apache.spark.internal.io.cloud.PathOutputCommitProtocol"
PARQUET_COMMITTER: Final = "org.apache.spark.internal.io.cloud.BindingParquetOutputCommitter"

_SESSION_SETTINGS: Final[Mapping[str, str]] = {
    "spark.sql.sources.commitProtocolClass": COMMIT_PROTOCOL,
    "spark.sql.parquet.output.committer.class": PARQUET_COMMITTER,
}
_WRITER_OPTIONS: Final[Mapping[str, str]] = {
    "fs.s3a.committer.name": "magic",
    "fs.s3a.committer.magic.enabled": "true",
    "fs.s3a.committer.abort.pending.uploads": "false",
}


def is_s3a(output: str) -> bool:
    return output.split(":", 1)[0].lower() == SCHEME


def s3a_writer_options(spark: SparkSession) -> tuple[Mapping[str, str], str | None]:
    """Options of Spark's writer, and a warning if there is one. The session is set to commit that way.

    Raises:
        UsageError: nothing here can write to s3a:// at all.
    """
    jvm: Any = spark.sparkContext._jvm
    hadoop = str(jvm.org.apache.hadoop.util.VersionInfo.getVersion())
    client, binding = (
        f"org.apache.hadoop:hadoop-aws:{hadoop}",
        f"org.apache.spark:spark-hadoop-cloud_2.13:{spark.version}",
    )
    if not _is_loadable(jvm, FILE_SYSTEM_CLASS):
        raise UsageError(f"s3a:// needs Hadoop's S3A client: --conf spark.jars.packages={client},{binding}")
    if not _is_loadable(jvm, COMMIT_PROTOCOL):
        return {}, (
            "s3a:// is written by Hadoop's file committer, which copies each file once more in the store: Spark's "
            f"binding of the magic committer is missing (--conf spark.jars.packages={client},{binding})"
        )
    for name, value in _SESSION_SETTINGS.items():
        spark.conf.set(name, value)
    return _WRITER_OPTIONS, None


def _is_loadable(jvm: Any, name: str) -> bool:
    try:
        jvm.org.apache.spark.util.Utils.classForName(name, False, True)
    except Py4JJavaError as error:
        if "ClassNotFoundException" in str(error.java_exception.getClass().getName()):
            return False
        raise
    return True
