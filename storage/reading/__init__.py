"""From an offset, or a time, to batches: through metadata, indexes and cache. Read `reader` first."""
