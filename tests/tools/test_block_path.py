"""What the profile of a cold and a warm Fetch names, and what it leaves out."""

import pytest

from storage.object_store.filesystem import FileSystemStore
from tools.block_path import ENGINE_ROOM, Call, Trace, main, report, trace_fetches


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> tuple[Trace, Trace]:
    folder = tmp_path_factory.mktemp("block-path")
    return trace_fetches(FileSystemStore(folder / "objects"), folder / "keys")


def test_a_cold_fetch_goes_to_the_store_and_a_warm_one_stops_at_the_memory(traces: tuple[Trace, Trace]) -> None:
    cold, warm = (trace.files() for trace in traces)
    through = ["proxy/connection/connection.py", "storage/reader.py", "storage/cache/blocks.py"]
    assert [file for file in cold if file in through] == through
    assert "storage/object_store/filesystem.py" in cold
    assert "storage/formats/aiven/opened_segment.py" in cold, "worker threads are seen"
    assert {*through} <= {*warm}
    assert not [file for file in warm if file.startswith(("storage/object_store", "storage/formats"))]


def test_the_engine_begins_where_the_block_is_missing_and_ends_where_it_is_kept(traces: tuple[Trace, Trace]) -> None:
    cold, warm = traces
    engine = cold.engine().files()
    assert {*engine} < {*cold.files()}
    assert "MemoryBlocks.put" in engine[f"{ENGINE_ROOM}/blocks.py"]
    of_protocol = [file for file in engine if file.startswith("protocol/")]
    assert of_protocol == ["protocol/record_batches.py"], "batches are checked, nothing is encoded yet"
    leading = cold.engine().leads_on(ENGINE_ROOM)
    assert {"storage/cache/block_cache.py", "storage/cache/gets.py"} <= {*leading} < {*engine}
    with pytest.raises(LookupError, match=r"no call of CacheMeter\.on_miss"):
        warm.engine()
    # Only files of ours count, and types stand apart.
    assert {file.split("/")[0] for file in cold.files()} == {"metrics", "protocol", "proxy", "storage"}
    assert "storage/errors.py" not in cold.files()
    assert not {*cold.types()} & {*cold.files()}


def test_files_are_shown_by_room_in_the_order_of_their_first_call() -> None:
    calls = [Call("a/b.py", "f", False), Call("c/d.py", "X.__init__", True), Call("a/e.py", "g", False)]
    calls += [Call("a/b.py", "h", False), Call("a/b.py", "f", False)]
    assert [*report("it", Trace(calls), has_functions=True)] == [
        "it: 2 files",
        "  a: 2",
        "    b.py  (f, h)",
        "    e.py  (g)",
        "  types alone, not counted: c/d.py",
    ]


def test_the_script_prints_its_counts(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--store", "filesystem"]) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("cold ")
    assert f"of them in {ENGINE_ROOM} " in last
