from pathlib import Path

import pytest

from storage.errors import RemoteStorageError
from tests.storage.formats.ended_copies import leaves_a_whole_segment_or_none
from tests.support.for_each import for_each
from tests.support.memory_store import Killed


@for_each("with_former", [False, True])
@for_each("error", [Killed(), RemoteStorageError("no more")])
@pytest.mark.parametrize("compression", [False, True])
def test_a_copy_that_ends_at_any_step_leaves_a_whole_segment_or_none(
    tmp_path: Path, compression: bool, error: BaseException, with_former: bool
) -> None:
    leaves_a_whole_segment_or_none(tmp_path, compression, not compression, error, with_former)
