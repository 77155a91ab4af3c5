"""The benchmark of the decoder runs on little data, and its sides give the same rows."""

import importlib.util
import warnings

import pytest

if importlib.util.find_spec("pyarrow") is None:
    pytest.skip("the extra `spark` is not installed", allow_module_level=True)

with warnings.catch_warnings():
    # kafka-python reads its resources in a way that is going away.
    warnings.simplefilter("ignore", DeprecationWarning)
    from benchmarks import record_decoding


def test_all_sides_read_the_same_rows() -> None:
    cells = record_decoding.measure(rounds=1, plain_bytes=100_000)
    assert len(cells) == 12
    assert all(cell.are_equal and cell.decoder_rows_per_s > 0 for cell in cells)
