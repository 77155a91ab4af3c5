"""Standalone mode: segments out of brokers that have no remote storage, retention, deletion.

What is here so far has no input or output but files: batches in, staged segments out (`staging`), and what an owner of
a partition does with them (`ledger`, `segment_copy`). Read `staging` first.
"""
