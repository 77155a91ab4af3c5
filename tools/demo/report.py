"""What the demo found out: the table, and what is wrong with it. Pure functions of an Outcome."""

from dataclasses import dataclass

from rich.box import SIMPLE_HEAVY
from rich.table import Table

from tools.demo.reading import Reading
from tools.demo.tidegate_process import Counters

_DIGEST_CHARACTERS = 12


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """Both reads, what Tidegate counted during its one, and the broker's remote fetches before and after each."""

    produced: int
    directly: Reading
    through_tidegate: Reading
    counted: Counters
    remote_fetches_at_start: int
    remote_fetches_between: int
    """After the direct read, before the one through Tidegate."""
    remote_fetches_at_end: int

    def complaints(self) -> list[str]:
        """Return what should be otherwise, a sentence each; empty when the demo has shown what it should."""
        found = []
        for how, reading in (("directly", self.directly), ("through Tidegate", self.through_tidegate)):
            if reading.records != self.produced:
                found.append(f"{self.produced:,} records were produced, but {reading.records:,} read {how}.")
        if self.directly.digest != self.through_tidegate.digest:
            found.append("The records read through Tidegate are not those read directly: the digests differ.")
        if self.remote_fetches_at_end != self.remote_fetches_between:
            moved = self.remote_fetches_at_end - self.remote_fetches_between
            found.append(f"The broker read its tier {moved:,} times while records were read through Tidegate.")
        if self.counted.served_tier_bytes <= 0:
            found.append("Tidegate has served no byte from the tier.")
        if self.through_tidegate.records_only_in_tier <= 0:
            found.append("No record was in the tier alone, so nothing was shown.")
        return found

    def table(self) -> Table:
        """At most 80 columns wide."""
        table = Table(box=SIMPLE_HEAVY, pad_edge=False)
        table.add_column("")
        table.add_column("directly", justify="right")
        table.add_column("through Tidegate", justify="right", style="bold")
        for row in self._rows():
            table.add_row(*row)
        return table

    def _rows(self) -> list[tuple[str, str, str]]:
        first, second = self.directly, self.through_tidegate
        return [
            ("records", f"{first.records:,}", f"{second.records:,}"),
            ("  of them in the tier only", _share(first), _share(second)),
            ("digest of the records", first.digest[:_DIGEST_CHARACTERS], second.digest[:_DIGEST_CHARACTERS]),
            ("time", f"{first.seconds:.1f} s", f"{second.seconds:.1f} s"),
            ("speed", f"{first.megabytes_per_s:.1f} MB/s", f"{second.megabytes_per_s:.1f} MB/s"),
            ("Tidegate relayed from the broker", "", _megabytes(self.counted.relayed_bytes)),
            ("Tidegate served from the tier", "", _megabytes(self.counted.served_tier_bytes)),
            ("  its RemoteFetchBytes (KIP-405)", "", _megabytes(self.counted.remote_fetch_bytes)),
            (
                "broker's own remote fetches",
                f"{self.remote_fetches_at_start:,} -> {self.remote_fetches_between:,}",
                f"{self.remote_fetches_between:,} -> {self.remote_fetches_at_end:,}",
            ),
        ]


def _share(reading: Reading) -> str:
    percent = 100 * reading.records_only_in_tier / max(1, reading.records)
    return f"{reading.records_only_in_tier:,} ({percent:.1f} %)"


def _megabytes(count: int) -> str:
    return f"{count / 1e6:,.2f} MB"
