"""What today's engine reaches: a ratchet. `python -m tests.simulation.table --baseline` prints it anew."""

from collections.abc import Collection, Mapping, Sequence

BASELINE: Mapping[str, Sequence[Sequence[float]]] = {
    "cold 1 x 400 MiB": ((0.74,), (0.76,), (0.45,)),
    "cold 2 x 200 MiB": ((0.71,), (0.73,), (0.6,)),
    "cold 2 x 1024 MiB": ((0.92,), (0.93,), (0.87,)),
    "cold 8 x 50 MiB": ((0.56,), (0.58,), (0.49,)),
    "cold 64 x 10 MiB": ((0.89,), (0.94,), (0.76,)),
    "1 GiB segments 2 x 200 MiB": ((0.71,), (0.75,), (0.59,)),
    "1 GiB segments, 4 KiB batches 64 x 4 MiB": ((0.39,), (0.41,), (0.33,)),
    "8 MiB segments 1 x 200 MiB": ((0.63,), (0.69,), (0.31,)),
    "8 MiB segments 2 x 200 MiB": ((0.76,), (0.79,), (0.58,)),
    "cold 2 x 200 MiB, 4 MiB chunks": ((0.69,), (0.71,), (0.48,)),
    "8 MiB segments 2 x 100 MiB, 4 MiB chunks": ((0.59,), (0.61,), (0.34,)),
    "every other block cached, 1 x 400 MiB": ((1.21,), (1.18,), (0.74,)),
    "every other block cached, 2 x 200 MiB": ((1.15,), (1.37,), (0.75,)),
    "random half cached, 2 x 200 MiB": ((1.32,), (1.39,), (1.02,)),
    "first half cached, 2 x 200 MiB": ((1.18,), (1.06,), (1.08,)),
    "all cached in memory, 2 x 200 MiB": ((0.71, 3.51), (0.73, 2.34), (0.6, 4.68)),
    "all cached on disk, 2 x 100 MiB": ((0.51, 1.99), (0.54, 1.33), (0.39, 2.65)),
    "cache smaller than 1 x 400 MiB": ((0.74, 0.81), (0.76, 0.83), (0.45, 0.47)),
    "cache smaller than 2 x 200 MiB": ((0.71, 0.17), (0.73, 0.24), (0.6, 0.08)),
    "cache of 64 MiB, 2 x 200 MiB": ((0.71, 0.83), (0.73, 0.86), (0.6, 0.63)),
    "consumer of 100 MB/s, 1 x 200 MiB": ((0.81,), (0.87,), (0.64,)),
    "consumer of 100 MB/s, 8 x 25 MiB": ((0.95,), (0.98,), (0.82,)),
    "one connection stalls, 2 x 200 MiB": ((0.27,), (0.19,), (0.29,)),
    "one connection is slow, 2 x 200 MiB": ((0.56,), (0.53,), (0.39,)),
    "one answer is late, 2 x 200 MiB": ((0.36,), (0.27,), (0.36,)),
    "16 readers of 1 x 50 MiB": ((0.82,), (0.84,), (0.75,)),
}
"""Shares by case: for each of LINKS, of each pass."""

MISSED: Collection[tuple[str, str]] = {
    ("cold 1 x 400 MiB", "100ms-20-300"),
    ("cold 2 x 200 MiB", "30ms-60-400"),
    ("cold 2 x 200 MiB", "10ms-90-600"),
    ("cold 2 x 200 MiB", "100ms-20-300"),
    ("cold 2 x 1024 MiB", "100ms-20-300"),
    ("cache smaller than 2 x 200 MiB", "30ms-60-400"),
    ("cache smaller than 2 x 200 MiB", "10ms-90-600"),
    ("cache smaller than 2 x 200 MiB", "100ms-20-300"),
    ("consumer of 100 MB/s, 1 x 200 MiB", "100ms-20-300"),
    ("consumer of 100 MB/s, 8 x 25 MiB", "100ms-20-300"),
    ("16 readers of 1 x 50 MiB", "30ms-60-400"),
    ("16 readers of 1 x 50 MiB", "10ms-90-600"),
    ("16 readers of 1 x 50 MiB", "100ms-20-300"),
}
"""Cases and links that miss an aim. One that does not any more is to be taken out."""
