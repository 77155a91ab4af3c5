"""The tier's table is a part of the whole one; `test_tidegate_names` judges every row."""

from metrics import tidegate_names, tier_names


def test_the_whole_table_holds_the_tiers() -> None:
    assert set(tier_names.FAMILIES) <= set(tidegate_names.FAMILIES)
