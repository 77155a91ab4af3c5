"""What today's engine reaches: a ratchet. `python -m tests.simulation.table --baseline` prints it again."""

from collections.abc import Collection, Mapping, Sequence

BASELINE: Mapping[str, Sequence[Sequence[float]]] = {
    "cold 1 x 400 MiB": ((0.82,), (0.84,), (0.62,)),
    "cold 2 x 200 MiB": ((0.86,), (0.85,), (0.7,)),
    "cold 2 x 1024 MiB": ((0.94,), (0.95,), (0.82,)),
    "cold 8 x 50 MiB": ((0.86,), (0.89,), (0.8,)),
    "cold 64 x 10 MiB": ((0.82,), (0.86,), (0.73,)),
    "1 GiB segments 2 x 200 MiB": ((0.88,), (0.85,), (0.7,)),
    "1 GiB segments, 4 KiB batches 64 x 4 MiB": ((0.73,), (0.7,), (0.67,)),
    "8 MiB segments 1 x 200 MiB": ((0.7,), (0.69,), (0.49,)),
    "8 MiB segments 2 x 200 MiB": ((0.87,), (0.86,), (0.69,)),
    "cold 2 x 200 MiB, 4 MiB chunks": ((0.73,), (0.8,), (0.58,)),
    "8 MiB segments 2 x 100 MiB, 4 MiB chunks": ((0.68,), (0.71,), (0.43,)),
    "every other block cached, 1 x 400 MiB": ((1.07,), (1.02,), (0.76,)),
    "every other block cached, 2 x 200 MiB": ((1.12,), (1.22,), (0.82,)),
    "random half cached, 2 x 200 MiB": ((1.44,), (1.55,), (1.05,)),
    "first half cached, 2 x 200 MiB": ((1.38,), (1.35,), (1.1,)),
    "all cached in memory, 2 x 200 MiB": ((0.86, 3.51), (0.85, 2.34), (0.7, 4.68)),
    "all cached on disk, 2 x 100 MiB": ((0.77, 2.89), (0.76, 1.95), (0.54, 1.78)),
    "cache smaller than 1 x 400 MiB": ((0.82, 0.85), (0.84, 0.89), (0.62, 0.62)),
    "cache smaller than 2 x 200 MiB": ((0.86, 0.86), (0.85, 0.88), (0.7, 0.75)),
    "cache of 64 MiB, 2 x 200 MiB": ((0.86, 0.86), (0.85, 0.87), (0.7, 0.72)),
    "consumer of 100 MB/s, 1 x 200 MiB": ((0.86,), (0.88,), (0.77,)),
    "consumer of 100 MB/s, 8 x 25 MiB": ((0.98,), (0.99,), (0.93,)),
    "one connection stalls, 2 x 200 MiB": ((0.81,), (0.65,), (0.65,)),
    "one connection is slow, 2 x 200 MiB": ((0.8,), (0.77,), (0.43,)),
    "one answer is late, 2 x 200 MiB": ((0.78,), (0.79,), (0.61,)),
    "16 readers of 1 x 50 MiB": ((0.9,), (0.92,), (0.9,)),
}
"""Shares by case: for each of LINKS, of each pass."""

MISSED: Collection[tuple[str, str]] = {
    ("cold 1 x 400 MiB", "100ms-20-300"),
    ("cold 2 x 200 MiB", "100ms-20-300"),
    ("cold 2 x 1024 MiB", "100ms-20-300"),
    ("consumer of 100 MB/s, 1 x 200 MiB", "100ms-20-300"),
}
"""Cases and links that miss an aim. One that does not any more is to be taken out."""
