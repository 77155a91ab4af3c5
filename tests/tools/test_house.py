"""Ends of the house that are met, and stay so."""

import ast
from collections.abc import Mapping

import pytest

from tools.code_lines import PRODUCT, files_now
from tools.house import OWNER_WORDS, contract_exceptions, storage_pairs_both_ways


@pytest.fixture(scope="module")
def texts() -> Mapping[str, str]:
    return {name: text for name, text in files_now() if name.partition("/")[0] in PRODUCT}


def test_lower_rooms_know_nothing_of_higher_ones(texts: Mapping[str, str]) -> None:
    assert contract_exceptions() == []
    assert storage_pairs_both_ways({name: ast.parse(text) for name, text in texts.items()}) == []


def test_nobody_below_asks_whose_the_tier_is(texts: Mapping[str, str]) -> None:
    asking = [name for name, text in texts.items() if OWNER_WORDS.search(text)]
    assert [name for name in asking if not name.startswith("standalone/")] == []
