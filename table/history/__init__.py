"""History as a table: `tidegate.scan`. Read `scan` first.

predicate, sql_text, substrait      a filter as a small tree, from SQL's text and from Arrow's expressions
arrow_dataset, polars_frame, parquet_export    what a scan is handed to
explanation, metered_storage        what a scan will cost, and what it has cost
"""
