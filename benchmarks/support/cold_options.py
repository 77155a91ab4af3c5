"""The options of `cold_read.py`."""

import argparse
from dataclasses import dataclass

from benchmarks.support.options import MEGABYTES_MIN


@dataclass(frozen=True, slots=True, kw_only=True)
class ColdOptions:
    """`usd_per_1000_gets` is an assumption about a provider's price list, and is shown as one."""

    megabytes: int = 768
    segment_mib: int = 64
    chunk_kib: int = 4096
    first_byte_ms: int = 30
    connection_megabytes_per_s: int = 60
    streams: int = 64
    streams_memory_mib: int = 384
    usd_per_1000_gets: float = 0.0004
    is_quick: bool = False
    has_plugin_model: bool = False
    as_json: bool = False


def parse_cold_options(arguments: list[str] | None = None) -> ColdOptions:
    """From the command line."""
    base = ColdOptions()
    parser = argparse.ArgumentParser(description="Cold reads of Aiven's format over a slow link, against bare boto3.")

    def number(option: str, default: float, words: str) -> None:
        parser.add_argument(option, type=type(default), default=default, help=f"{words} ({default})")

    number("--megabytes", base.megabytes, "data of all partitions together")
    number("--segment-mib", base.segment_mib, "size of a segment, MiB")
    number("--chunk-kib", base.chunk_kib, "the plugin's chunk.size, KiB; 4096 is what it recommends")
    number("--first-byte-ms", base.first_byte_ms, "from a request to the first byte of its answer")
    number("--connection-megabytes", base.connection_megabytes_per_s, "MB/s of a connection")
    number("--streams", base.streams, "readers of the memory check")
    number("--streams-memory-mib", base.streams_memory_mib, "memory.max.bytes of the memory check, MiB")
    number("--usd-per-1000-gets", base.usd_per_1000_gets, "an assumed price")
    parser.add_argument("--quick", action="store_true", help="one variant: neither encryption nor zstd")
    parser.add_argument("--plugin-like", action="store_true", help="also a model of the plugin's requests, for 2p")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    chosen = parser.parse_args(arguments)
    options = ColdOptions(
        megabytes=chosen.megabytes,
        segment_mib=chosen.segment_mib,
        chunk_kib=chosen.chunk_kib,
        first_byte_ms=chosen.first_byte_ms,
        connection_megabytes_per_s=chosen.connection_megabytes,
        streams=chosen.streams,
        streams_memory_mib=chosen.streams_memory_mib,
        usd_per_1000_gets=chosen.usd_per_1000_gets,
        is_quick=chosen.quick,
        has_plugin_model=chosen.plugin_like,
        as_json=chosen.json,
    )
    if wrong := _wrong(options):
        parser.error(wrong)
    return options


def _wrong(options: ColdOptions) -> str:
    """What is out of range, in words; empty when nothing is."""
    limits = (
        (options.megabytes >= MEGABYTES_MIN, f"at least {MEGABYTES_MIN} MB"),
        (1 <= options.segment_mib <= 1024, "segments of 1 to 1024 MiB"),
        (4 <= options.chunk_kib <= 1024 * options.segment_mib, "chunks of 4 KiB up to a segment"),
        (options.first_byte_ms >= 0, "no answer before its request"),
        (options.connection_megabytes_per_s >= 1, "at least 1 MB/s a connection"),
        (1 <= options.streams <= 512, "1 to 512 streams"),
        (options.streams_memory_mib >= 96, "at least 96 MiB of memory"),
        (options.usd_per_1000_gets >= 0, "no negative price"),
    )
    return "; ".join(words for holds, words in limits if not holds)
