"""Values of a registry's series, or of a scraped page's, for tests that do not care about every label."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Self

from prometheus_client import Metric
from prometheus_client.parser import text_string_to_metric_families

from metrics.registry import Registry


def sum_of(source: Registry | str, name: str, labels: Mapping[str, str]) -> float:
    """The sum of all series of an exposed name that have these labels; 0 when there is none.

    Args:
        source: a registry, or the text of a page of `/metrics`.
    """
    families = _families_of(source, name) if isinstance(source, str) else source.collect()
    return sum(
        sample.value
        for family in families
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def _families_of(page: str, name: str) -> Iterable[Metric]:
    """Parse the lines of this name alone: a whole page takes the parser longer than a process takes to write it."""
    lines = [line for line in page.splitlines() if line.startswith((f"{name} ", f"{name}{{"))]
    families: Iterable[Metric] = text_string_to_metric_families("".join(f"{line}\n" for line in lines))
    return families


@dataclass(frozen=True, slots=True)
class Scrape:
    """A page of `/metrics`: (exposed name, labels) to value."""

    values: Mapping[tuple[str, frozenset[tuple[str, str]]], float]

    @classmethod
    def of(cls, page: str) -> Self:
        """Parse the text format."""
        return cls(
            {
                (sample.name, frozenset(sample.labels.items())): sample.value
                for family in text_string_to_metric_families(page)
                for sample in family.samples
            }
        )

    def sum(self, name: str, **labels: str) -> float:
        """The sum of all series of a name that have these labels; 0 when there is none."""
        wanted = labels.items()
        return sum(value for (found, has), value in self.values.items() if found == name and wanted <= has)
