"""docs/status.md has each field of the document, and no other."""

import re
from pathlib import Path
from typing import Any

from metrics.troubles import TroubleView
from tidegate.status import model

PAGE = Path(__file__).parents[3] / "docs" / "status.md"

SECTIONS: dict[str, Any] = {
    "The document": model.Status,
    "Troubles": TroubleView,
    "Conditions": model.ConditionStatus,
    "About": model.AboutStatus,
    "Traffic": model.TrafficStatus,
    "Brokers": model.BrokerStatus,
    "Catalog": model.CatalogStatus,
    "Last applied": model.AppliedStatus,
    "Metadata partitions": model.MetadataPartitionStatus,
    "Cache": model.CacheStatus,
    "Partitions": model.PartitionsStatus,
    "Rows": model.PartitionStatus,
    "Streams": model.StreamsStatus,
    "A stream": model.StreamStatus,
    "Fallbacks": model.FallbackStatus,
    "Limits": model.LimitStatus,
    "Clients": model.ClientStatus,
    "Copy": model.CopyStatus,
    "A partition that is copied": model.CopyPartitionStatus,
    "A deletion that waits": model.CopyDeletionStatus,
    "Errors": model.ErrorStatus,
    "Failed sections": model.FailedStatus,
}


def test_the_page_has_a_section_for_each_part_of_the_document_with_just_its_fields() -> None:
    found = re.split(r"^##+ (.+)\n", PAGE.read_text(), flags=re.MULTILINE)
    sections = dict(zip(found[1::2], found[2::2], strict=True))
    assert [*sections] == [*SECTIONS]
    for title, part in SECTIONS.items():
        named = re.findall(r"^- ((?:`\w+`(?:, )?)+)", sections[title], re.MULTILINE)
        assert re.findall(r"\w+", " ".join(named)) == [*part.__annotations__], title
