"""The benchmark of values runs on little data, and each format gives the orders that were written."""

import importlib.util

import pytest

if importlib.util.find_spec("pyarrow") is None:
    pytest.skip("the extra `spark` is not installed", allow_module_level=True)

from benchmarks import value_decoding


def test_each_format_gives_the_orders_that_were_written() -> None:
    cells = value_decoding.measure(rounds=1, row_count=50)
    assert [cell.format for cell in cells] == list(value_decoding.SHARES)
    assert all(cell.are_equal and cell.decoder_rows_per_s > 0 for cell in cells)
