"""The tier as Spark's data source `tidegate`, for a program that has the extra `spark`: `register(spark)`."""

from pipeline.session import register

__all__ = ["register"]
