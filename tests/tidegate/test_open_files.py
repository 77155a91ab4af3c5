"""How many clients open files allow, and what a process says and does that has none left."""

import resource
from pathlib import Path

import pytest
import trio

from metrics.troubles import TroubleId
from proxy.readiness import Readiness
from tests.support.config_files import load_lines
from tests.support.for_each import for_each
from tests.tidegate.workers.all.test_descriptors import no_open_file
from tidegate import open_files
from tidegate.open_files import (
    LOOK_S,
    NONE_LEFT_S,
    SpareFiles,
    are_enough_left,
    connections_max,
    shortage,
    watch_open_files,
)

INFINITE = resource.RLIM_INFINITY


@for_each(
    "limit, wanted, workers, allowed",
    [
        (65536, None, 1, 4096),
        (65536, 20000, 1, 20000),
        (65536, 40000, 1, 32608),
        (65536, 40000, 2, 40000),
        (INFINITE, 40000, 1, 40000),
        (1024, None, 1, 352),
        (1024, None, 4, 1408),
        (1024, 300, 1, 300),
        # Less than Tidegate needs itself.
        (256, None, 1, 64),
        (3, None, 1, 1),
    ],
)
def test_clients_get_what_the_limit_leaves(
    limit: int, wanted: int | None, workers: int, allowed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (limit, limit))
    config = load_lines(tmp_path, "" if wanted is None else f"proxy.connections.max={wanted}\n")
    assert connections_max(config, workers) == allowed
    said = shortage(config, workers)
    if wanted is None or wanted == allowed:
        assert said is None
    else:
        assert said is not None
        assert f"no more than {allowed} are let in, for the limit on open files is {limit}" in said


def test_a_spare_file_can_be_spent_when_no_other_is_left() -> None:
    spare = SpareFiles(2)
    with no_open_file():
        assert not are_enough_left()
        assert spare.spend()
        assert not are_enough_left()  # a client takes two
        assert spare.spend()
        assert are_enough_left()
        spare.fill()
        assert not are_enough_left()
    spare.close()
    assert not spare.spend()


@pytest.mark.autojump
async def test_the_trouble_lasts_a_moment_longer_than_the_want(monkeypatch: pytest.MonkeyPatch) -> None:
    is_there = False
    monkeypatch.setattr(open_files, "are_enough_left", lambda: is_there)
    readiness = Readiness()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch_open_files, readiness)
        await trio.sleep(LOOK_S / 2)
        assert TroubleId.NO_OPEN_FILE in readiness.told
        is_there = True
        await trio.sleep(NONE_LEFT_S - LOOK_S)
        assert TroubleId.NO_OPEN_FILE in readiness.told
        await trio.sleep(2 * LOOK_S)
        assert TroubleId.NO_OPEN_FILE not in readiness.told
        nursery.cancel_scope.cancel()
