"""What `make house` counts, on trees that are small enough to count by hand."""

import ast

from tools.house import contract_exceptions, implementations, imports_of, storage_pairs_both_ways

TREES = {
    "storage/a/one.py": ast.parse(
        "from storage.b.two import Two\nclass Store:\n  def get(self): ...\n  def put(self): ..."
    ),
    "storage/b/two.py": ast.parse(
        "from storage.a import one\nfrom typing import Protocol\nclass Getter(Protocol):\n  def get(self): ...\n"
        "class Sender(Protocol):\n  def send(self): ..."
    ),
    "storage/c/three.py": ast.parse("from storage.a.one import Store"),
}


def test_arrows_both_ways_and_implementations_are_found() -> None:
    assert [*imports_of(TREES["storage/b/two.py"], {*TREES})] == ["storage/a/one.py"]
    assert storage_pairs_both_ways(TREES) == [("a", "b")]
    assert implementations(TREES) == {"Getter": 1, "Sender": 0}


def test_exceptions_to_the_law_are_few() -> None:
    assert len(contract_exceptions()) <= 40
