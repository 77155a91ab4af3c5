"""The table of docs/operate/size.md follows from what the page says below it, and so do the figures for newcomers."""

import math
import re

import pytest

from tests.repository.sources import ROOT, text_of

PAGE = text_of(ROOT / "docs" / "operate" / "size.md")
GET_MIB, BESIDE_GIB, LEAST_GIB = 12, 150 / 1024, 1.5


def test_what_each_load_takes_follows_from_the_rules() -> None:
    """Two GETs for each partition are a third of `memory.max.bytes`; a third of each core stays free."""
    (https,) = re.findall(r"HTTPS takes ([\d.]+)\s+core-seconds per GB", PAGE)
    rows = re.findall(
        r"^\| ([\d,]+) \| (\d+) \| (\d+) \| ([\d.]+) GiB \| ([\d.]+) GiB \| ([\d.]+) TB \| (\d+) \| 2 \|$",
        PAGE,
        re.MULTILINE,
    )
    assert len(rows) == 5
    for megabytes, partitions, cores, memory, limit, disk, connections in rows:
        assert float(disk) == pytest.approx(int(megabytes.replace(",", "")) * 3600 / 1e6, rel=0.05)
        assert int(connections) == 3 * int(partitions)
        assert int(cores) == math.ceil(int(megabytes.replace(",", "")) * float(https) / 1000 * 1.5)
        assert float(memory) == max(LEAST_GIB, int(partitions) * 2 * GET_MIB * 3 / 1024)
        processes = int(cores) + (int(cores) > 1)
        assert 0 <= float(limit) - float(memory) - processes * BESIDE_GIB < 0.1


def test_newcomers_read_the_same_figures() -> None:
    """What a core carries is one over the core-seconds that a GB takes."""
    said = re.search(
        r"([\d.]+) GB/s of relayed records, ([\d.]+) GB/s from a cold store over HTTP and ([\d.]+) GB/s over HTTPS",
        " ".join(text_of(ROOT / "docs" / "is-it-for-me.md").split()),
    )
    taken = re.search(r"HTTPS takes ([\d.]+)\s+core-seconds per GB, HTTP ([\d.]+), relayed records ([\d.]+),", PAGE)
    assert said is not None
    assert taken is not None
    https, http, relayed = (1 / float(each) for each in taken.groups())
    assert [float(each) for each in said.groups()] == pytest.approx([relayed, http, https], rel=0.02)
