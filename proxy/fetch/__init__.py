"""A Fetch: `exchange` tells what happens to it (read it first); frontier, probe, tier reads, the way out."""
