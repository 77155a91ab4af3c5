"""Blocks in memory and on disk, the GETs that bring them, read-ahead; manifests and indexes.

Read `block_cache` first: memory, then disk, then one GET that everyone shares.
"""
