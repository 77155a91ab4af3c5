"""PySpark: the tier as a Spark data source, backfill, audit."""
