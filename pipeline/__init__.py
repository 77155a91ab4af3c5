"""Spark: the tier as a data source, and the jobs `backfill` and `audit`. It never reaches trio.

Read `data_source` first; `planning` runs on the driver, `reading` and `decoding` on executors.
"""
