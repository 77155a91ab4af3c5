"""Where a job keeps what it has done: a folder in any file system that Spark's Hadoop client reaches (local, S3A, …).

Driver only. Small files are written whole: by rename, or where an object appears when it is whole, without one. So a
job that is killed leaves a file or none.
"""

import json
from collections.abc import Iterator
from typing import Any

from pyspark.sql import SparkSession

TEXT_BYTES_MAX = 64 * 1024 * 1024
"""For one of our own files: a plan of the most steps there may be has a third of that."""

WHOLE_OBJECTS = frozenset({"s3a", "gs"})
"""File systems where nobody sees a file before it is closed, and where a rename would be a copy."""


class JobFolder:
    """One folder. Paths are relative to it and have forward slashes."""

    def __init__(self, spark: SparkSession, root: str) -> None:
        jvm: Any = spark.sparkContext._jvm
        self._path = jvm.org.apache.hadoop.fs.Path
        self._to_string = jvm.org.apache.commons.io.IOUtils.toString
        self._root = self._path(root)
        self._files = self._root.getFileSystem(spark.sparkContext._jsc.hadoopConfiguration())

    @property
    def root(self) -> str:
        return str(self._root.toString())

    def exists(self, name: str) -> bool:
        return bool(self._files.exists(self._at(name)))

    def read_json(self, name: str) -> Any:
        """Return what a file holds; None when there is no such file.

        Raises:
            ValueError: it is not JSON, or larger than TEXT_BYTES_MAX.
        """
        if not self.exists(name):
            return None
        size_bytes = int(self._files.getFileStatus(self._at(name)).getLen())
        if size_bytes > TEXT_BYTES_MAX:
            raise ValueError(f"{self.root}/{name} has {size_bytes} bytes, {TEXT_BYTES_MAX} at most are read")
        stream = self._files.open(self._at(name))
        try:
            text = str(self._to_string(stream, "UTF-8"))
        finally:
            stream.close()
        try:
            return json.loads(text)
        except ValueError as error:
            raise ValueError(f"{self.root}/{name} is not JSON: {error}") from error

    def write_json(self, name: str, value: object, *, writer: str = "") -> None:
        """Create or replace a file.

        `writer`: who writes, where two may write at once: else one could move what the other has half written.

        Raises:
            OSError: the file system refuses.
        """
        if str(self._files.getUri().getScheme()) in WHOLE_OBJECTS:
            self._write(name, value)
            return
        # Always the same name for a file and writer: what a killed job leaves there, the next one writes over.
        made = f"_made-{name.replace('/', '-')}{writer}"
        self._write(made, value)
        self._rename(made, name)

    def names(self, pattern: str) -> Iterator[str]:
        """Yield the names of files and folders that match a glob, in order."""
        found = self._files.globStatus(self._at(pattern)) or ()
        yield from sorted(self.relative(str(status.getPath().toString())) for status in found)

    def relative(self, path: str) -> str:
        """A full path as a name here."""
        return path.removeprefix(str(self._files.makeQualified(self._root).toString()).rstrip("/") + "/")

    def delete(self, name: str) -> None:
        """A file, or a folder with all that is in it; what is absent already is no error."""
        self._files.delete(self._at(name), True)

    def delete_if_empty(self, name: str) -> None:
        """A folder with nothing in it."""
        if not self._files.globStatus(self._path(self._at(name), "*")):
            self._files.delete(self._at(name), False)

    def _write(self, name: str, value: object) -> None:
        stream = self._files.create(self._at(name), True)
        try:
            stream.write(json.dumps(value, indent=2, sort_keys=True).encode())
        finally:
            stream.close()

    def _rename(self, name: str, to: str) -> None:
        """Rename, in place of what is there already."""
        target = self._at(to)
        self._files.mkdirs(target.getParent())
        self._files.delete(target, False)
        if not self._files.rename(self._at(name), target):
            raise OSError(f"{self.root}: cannot move {name} to {to}")

    def _at(self, name: str) -> Any:
        return self._path(self._root, name)
