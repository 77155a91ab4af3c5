"""The tier: the two KIP-405 seams, object formats, catalog, indexes, cache and reader."""
