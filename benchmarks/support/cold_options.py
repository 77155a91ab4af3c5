"""The options of `cold_read.py`: which rows, on what data, over what link."""

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from benchmarks.support.options import MEGABYTES_MIN
from benchmarks.support.shaped_store import KINDS

SCHEMES = ("http", "https")
VARIANTS = {"plain": (False, False), "aes": (True, False), "zstd": (False, True), "aes-zstd": (True, True)}
"""How segments are stored: encrypted, compressed."""
CACHES = ("memory", "small-memory", "small-disk", "large-disk")
"""The memory cache alone, of its default size or a quarter of what is read; or with a disk cache of half or twice."""
CLIENTS = ("bare", "librdkafka")

ROUNDS = 5
PARTITIONS_MAX = 8

Value = TypeVar("Value", int, str)


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdOptions:
    """The rows are all combinations of schemes, batch_kib, variants, caches and partitions."""

    store: str = "s3"
    schemes: tuple[str, ...] = SCHEMES
    batch_kib: tuple[int, ...] = (4, 16)
    variants: tuple[str, ...] = ("plain",)
    caches: tuple[str, ...] = ("memory",)
    partitions: tuple[int, ...] = (1, 2)
    client: str = "bare"
    rounds: int = ROUNDS
    megabytes: int = 400
    segment_mib: int = 64
    chunk_kib: int = 4096
    first_byte_ms: int = 30
    connection_megabytes_per_s: int = 60
    streams: int = 64
    streams_memory_mib: int = 384
    brokers: int = 1
    as_json: bool = False


def parse_cold_options(arguments: list[str] | None = None) -> ColdOptions:
    """From the command line."""
    base = ColdOptions()
    parser = argparse.ArgumentParser(
        description="Cold reads of Aiven's format over a slow link, beside the store's SDK."
    )

    def number(option: str, default: int, words: str) -> None:
        parser.add_argument(option, type=int, default=default, help=f"{words} ({default})")

    def several(option: str, default: tuple[Value, ...], words: str) -> None:
        shown = ",".join(map(str, default))
        parser.add_argument(option, type=_comma_separated(default), default=default, help=f"{words} ({shown})")

    parser.add_argument("--store", choices=KINDS, default=base.store, help=f"kind of object store ({base.store})")
    parser.add_argument("--scheme", choices=(*SCHEMES, "both"), help="of the object store (s3: both; others: http)")
    several("--batch-kib", base.batch_kib, "size of record batches, KiB; a topic each")
    several("--variants", base.variants, f"of {', '.join(VARIANTS)}")
    several("--caches", base.caches, f"of {', '.join(CACHES)}")
    several("--partitions", base.partitions, "read at once, by one client")
    parser.add_argument("--client", choices=CLIENTS, default=base.client, help=f"what reads ({base.client})")
    number("--rounds", base.rounds, "repetitions, the SDK and Tidegate in turns")
    parser.add_argument("--quick", action="store_true", help="one repetition")
    number("--megabytes", base.megabytes, "data of all partitions of a topic together")
    number("--segment-mib", base.segment_mib, "size of a segment, MiB")
    number("--chunk-kib", base.chunk_kib, "the plugin's chunk.size, KiB; 4096 is what it recommends")
    number("--first-byte-ms", base.first_byte_ms, "from a request to the first byte of its answer")
    number("--connection-megabytes", base.connection_megabytes_per_s, "MB/s of a connection")
    number("--streams", base.streams, "readers of the memory check; 0: none")
    number("--streams-memory-mib", base.streams_memory_mib, "memory.max.bytes of the memory check, MiB")
    parser.add_argument("--json", action="store_true", help="print the figures, those of each round too, as JSON")
    chosen = parser.parse_args(arguments)
    options = ColdOptions(
        store=chosen.store,
        schemes=_schemes(chosen.scheme or ("both" if chosen.store == "s3" else "http")),
        batch_kib=chosen.batch_kib,
        variants=chosen.variants,
        caches=chosen.caches,
        partitions=chosen.partitions,
        client=chosen.client,
        rounds=1 if chosen.quick else chosen.rounds,
        megabytes=chosen.megabytes,
        segment_mib=chosen.segment_mib,
        chunk_kib=chosen.chunk_kib,
        first_byte_ms=chosen.first_byte_ms,
        connection_megabytes_per_s=chosen.connection_megabytes,
        streams=chosen.streams,
        streams_memory_mib=chosen.streams_memory_mib,
        as_json=chosen.json,
    )
    if wrong := _wrong(options):
        parser.error(wrong)
    return options


def _schemes(text: str) -> tuple[str, ...]:
    return SCHEMES if text == "both" else (text,)


def _comma_separated(like: tuple[Value, ...]) -> Callable[[str], tuple[Value, ...]]:
    """Reads values of the same type, each once."""
    kind = type(like[0])

    def comma_separated(text: str) -> tuple[Value, ...]:
        return tuple(dict.fromkeys(kind(part) for part in text.split(",")))

    return comma_separated


def _wrong(options: ColdOptions) -> str:
    """Return what is out of range, in words; empty when nothing is."""
    limits = (
        (all(1 <= each <= 1024 for each in options.batch_kib), "batches of 1 to 1024 KiB"),
        ({*options.variants} <= {*VARIANTS}, f"variants are {', '.join(VARIANTS)}"),
        ({*options.caches} <= {*CACHES}, f"caches are {', '.join(CACHES)}"),
        (all(1 <= each <= PARTITIONS_MAX for each in options.partitions), f"1 to {PARTITIONS_MAX} partitions"),
        (options.store == "s3" or options.schemes == ("http",), "https with --store s3 only"),
        (options.rounds >= 1, "at least one round"),
        (options.megabytes >= MEGABYTES_MIN, f"at least {MEGABYTES_MIN} MB"),
        (1 <= options.segment_mib <= 1024, "segments of 1 to 1024 MiB"),
        (4 <= options.chunk_kib <= 1024 * options.segment_mib, "chunks of 4 KiB up to a segment"),
        (options.first_byte_ms >= 0, "no answer before its request"),
        (options.connection_megabytes_per_s >= 1, "at least 1 MB/s a connection"),
        (0 <= options.streams <= 512, "0 to 512 streams"),
        (options.streams_memory_mib >= 192, "at least 192 MiB of memory"),
    )
    return "; ".join(words for holds, words in limits if not holds)
