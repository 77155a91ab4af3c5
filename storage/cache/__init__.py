"""The block cache: blocks, single-flight fills, memory."""
