"""What opens tiers of plain objects, and closes them."""

from collections.abc import Iterator
from contextlib import ExitStack, closing

import pytest

from storage.formats.plain_objects import PlainObjects
from tests.contract.remote_storage_manager import OpenPlain


@pytest.fixture
def open_plain() -> Iterator[OpenPlain]:
    """Opens a manager by its keys, and closes it when the test has ended."""
    with ExitStack() as stack:
        yield lambda config: stack.enter_context(closing(PlainObjects(config)))
