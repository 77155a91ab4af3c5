"""Values of a registry's series, or of a scraped page's, for tests that do not care about every label."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Self

from prometheus_client.parser import text_string_to_metric_families

from metrics.registry import Registry


def sum_of(source: Registry | str, name: str, labels: Mapping[str, str]) -> float:
    """The sum of all series of an exposed name that have these labels; 0 when there is none.

    Args:
        source: a registry, or the text of a page of `/metrics`.
    """
    return sum(
        sample.value
        for family in (text_string_to_metric_families(source) if isinstance(source, str) else source.collect())
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


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
