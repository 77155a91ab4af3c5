"""What today's engine reaches: a ratchet. `python -m tests.simulation.table --baseline` prints it again."""

from collections.abc import Collection, Mapping, Sequence

BASELINE: Mapping[str, Mapping[str, Sequence[tuple[float, float]]]] = {
    "cold 1 x 400 MiB": {
        "30ms-60-400": ((0.83, 0.8),),
        "10ms-90-600": ((0.83, 0.81),),
        "100ms-20-300": ((0.66, 0.62),),
    },
    "cold 2 x 200 MiB": {"30ms-60-400": ((0.85, 0.8),), "10ms-90-600": ((0.83, 0.81),), "100ms-20-300": ((0.72, 0.7),)},
    "cold 2 x 1024 MiB": {
        "30ms-60-400": ((0.95, 0.93),),
        "10ms-90-600": ((0.94, 0.93),),
        "100ms-20-300": ((0.92, 0.91),),
    },
    "cold 8 x 50 MiB": {
        "30ms-60-400": ((0.85, 0.84),),
        "10ms-90-600": ((0.86, 0.85),),
        "100ms-20-300": ((0.74, 0.71),),
    },
    "cold 64 x 10 MiB": {"30ms-60-400": ((0.83, 0.8),)},
    "1 GiB segments 2 x 200 MiB": {"30ms-60-400": ((0.86, 0.81),)},
    "1 GiB segments, 4 KiB batches 64 x 4 MiB": {"30ms-60-400": ((0.48, 0.47),)},
    "8 MiB segments 1 x 200 MiB": {
        "30ms-60-400": ((0.73, 0.69),),
        "10ms-90-600": ((0.74, 0.69),),
        "100ms-20-300": ((0.48, 0.45),),
    },
    "8 MiB segments 2 x 200 MiB": {"30ms-60-400": ((0.85, 0.82),)},
    "cold 2 x 200 MiB, 4 MiB chunks": {"30ms-60-400": ((0.76, 0.74),)},
    "8 MiB segments 2 x 100 MiB, 4 MiB chunks": {
        "30ms-60-400": ((0.72, 0.69),),
        "10ms-90-600": ((0.79, 0.76),),
        "100ms-20-300": ((0.48, 0.44),),
    },
    "slow connections, 2 x 200 MiB, 4 MiB chunks": {"30ms-10-160": ((0.79, 0.76),)},
    "every other block cached, 1 x 400 MiB": {"30ms-60-400": ((1.03, 1.01),)},
    "every other block cached, 2 x 200 MiB": {"30ms-60-400": ((1.12, 1.1),)},
    "random half cached, 2 x 200 MiB": {"30ms-60-400": ((1.55, 1.5),)},
    "first half cached, 2 x 200 MiB": {"30ms-60-400": ((1.41, 1.39),)},
    "all cached in memory, 2 x 200 MiB": {"30ms-60-400": ((0.85, 0.8), (3.5, 3.5))},
    "all cached on disk, 2 x 100 MiB": {"30ms-60-400": ((0.81, 0.79), (2.95, 2.86))},
    "cache smaller than 1 x 400 MiB": {"30ms-60-400": ((0.83, 0.8), (0.9, 0.89))},
    "cache smaller than 2 x 200 MiB": {"30ms-60-400": ((0.85, 0.8), (0.92, 0.87))},
    "cache of 64 MiB, 2 x 200 MiB": {"30ms-60-400": ((0.85, 0.8), (0.9, 0.87))},
    "consumer of 100 MB/s, 1 x 200 MiB": {
        "30ms-60-400": ((0.84, 0.82),),
        "10ms-90-600": ((0.87, 0.87),),
        "100ms-20-300": ((0.74, 0.72),),
    },
    "consumer of 100 MB/s, 8 x 25 MiB": {"30ms-60-400": ((0.91, 0.91),)},
    "one connection stalls, 2 x 200 MiB": {
        "30ms-60-400": ((0.82, 0.79),),
        "10ms-90-600": ((0.81, 0.8),),
        "100ms-20-300": ((0.7, 0.67),),
    },
    "one connection is slow, 2 x 200 MiB": {
        "30ms-60-400": ((0.83, 0.81),),
        "10ms-90-600": ((0.82, 0.79),),
        "100ms-20-300": ((0.6, 0.43),),
    },
    "one answer is late, 2 x 200 MiB": {
        "30ms-60-400": ((0.84, 0.83),),
        "10ms-90-600": ((0.83, 0.79),),
        "100ms-20-300": ((0.72, 0.68),),
    },
    "16 readers of 1 x 50 MiB": {"30ms-60-400": ((0.88, 0.87),)},
}
"""Shares by case, link and pass: the mean over SEEDS, and the worst of them."""

MISSED: Collection[tuple[str, str]] = {
    ("cold 1 x 400 MiB", "10ms-90-600"),
    ("cold 1 x 400 MiB", "100ms-20-300"),
    ("cold 2 x 200 MiB", "100ms-20-300"),
    ("cold 2 x 1024 MiB", "100ms-20-300"),
    ("consumer of 100 MB/s, 1 x 200 MiB", "100ms-20-300"),
}
"""Cases and links that miss an aim. One that does not any more is to be taken out."""
