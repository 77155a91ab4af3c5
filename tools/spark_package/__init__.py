"""Builds what Spark users take to their clusters: `python -m tools.spark_package`, run by `make spark-package`.

Our packages have common names (storage, protocol, pipeline) that users' own modules may have too. On a cluster they
all live under one name, `tidegate_spark`, with their imports rewritten when the package is built
(`tools.distribution.import_mapping`). Files:

- `our_modules`: which of our modules the pipeline reaches, and which libraries those import;
- `dependencies`: the installed distributions behind those libraries, their files, and what they ask of each other;
- `shipped/`: the modules that exist in the built package alone: its face, and what unpacks the zip's libraries.
"""
