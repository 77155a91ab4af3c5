"""The tier as rows of Arrow, for whatever reads tables; Spark is one of its clients. It reaches neither trio nor Spark.

Read `driver` first; `planning` says what is read, `reading` and `decoding` read it, `values` give it types.
"""
