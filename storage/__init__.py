"""The tier: the two KIP-405 seams, object formats, catalog, indexes, cache and reader.

Read `reading` first: it goes from an offset to batches, through everything else here.
"""
