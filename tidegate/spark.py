"""The tier as Spark's data source `tidegate`, for a program that has the extra `spark`: `register(spark)`."""

from pipeline.session import register
from pipeline.stream_offsets import commit_offsets

__all__ = ["commit_offsets", "register"]
