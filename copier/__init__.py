"""Standalone mode: segments out of brokers that have no remote storage, retention, deletion.

What is here so far has no input or output but files: batches in, staged segments out. Read `staging` first.
"""
