"""What documents quote is what benchmarks have saved, and not typed."""

from pathlib import Path
from xml.etree import ElementTree

import pytest

from benchmarks import publish
from benchmarks.support.line_chart import line_chart
from benchmarks.support.published import load, save


def test_documents_have_the_figures_that_were_saved() -> None:
    """After a measurement `python benchmarks/publish.py` writes them."""
    for path, text in publish.documents().items():
        assert path.read_text("utf-8") == text, path


def test_a_run_of_some_rows_leaves_the_others(tmp_path: Path) -> None:
    path = tmp_path / "docs" / "figures.jsonl"
    save(path, [{"row": "one", "y": 1}, {"row": "two", "y": 2}])
    save(path, [{"row": "two", "y": 3}])
    assert [(row["row"], row["y"]) for row in load(path)] == [("one", 1), ("two", 3)]
    assert all({"date", "commit", "machine"} <= {*row} for row in load(path))


@pytest.mark.parametrize("is_log", [False, True])
def test_every_point_lies_within_the_chart(is_log: bool) -> None:
    points = [(0, 0.5), (1, 0.03), (10, 2.4), (1_000_000, 77.0)]
    root = ElementTree.fromstring(line_chart("a < b", {"one": points}, x_name="x", y_is_log=is_log))
    _, _, width, height = map(float, root.attrib["viewBox"].split())
    circles = [each for each in root.iter() if each.tag.endswith("circle")]
    assert len(circles) == len(points)
    assert all(0 <= float(each.attrib["cx"]) <= width and 0 <= float(each.attrib["cy"]) <= height for each in circles)
