"""Builds what Spark users take to their clusters: `python -m tools.spark_package`, run by `make spark-package`.

As in Tidegate's wheel all of ours is below `tidegate`, with imports rewritten (`tools.distribution.import_mapping`):
users' own modules may be called storage or pipeline too. Files:

- `our_modules`: which of our modules the pipeline reaches, and which libraries those import;
- `dependencies`: the installed distributions behind those libraries, their files, and what they ask of each other;
- `shipped/`: the modules that exist in the zip alone: its face, and what unpacks the zip's libraries;
- `old_name`: `tidegate_spark`, as a module and a wheel of its own.
"""
