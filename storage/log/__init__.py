"""A segment's log: walking its batches, their records, aborted transactions, look-ups by time."""
