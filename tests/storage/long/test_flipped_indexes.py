"""All flips of the indexes of small segments, and of a broker's own."""

import pytest

from tests.storage.all.test_flipped_indexes import (  # noqa: F401  # pytest finds them here, too
    test_flips_of_a_brokers_transaction_indexes,
    test_flips_of_small_segments,
)


@pytest.fixture
def every() -> int:
    return 1
