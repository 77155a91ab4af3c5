"""A segment's log: walking its batches, their records, aborted transactions, look-ups by time.

Read `batch_walk` first: which batches a read returns.
"""
