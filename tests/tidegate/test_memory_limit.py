"""How much memory a process may have: whatever kind of control groups says so."""

from dataclasses import replace
from pathlib import Path

from storage.config.value_kinds import MIB
from tests.support.config_files import load_lines
from tidegate.memory_limit import memory_bytes, memory_shortage


def test_the_least_limit_of_all_groups_counts(tmp_path: Path) -> None:
    own = tmp_path / "own"
    machine_bytes = memory_bytes(tmp_path, own)
    assert machine_bytes > 0
    for number, (file, groups) in enumerate(
        (
            ("memory.max", ""),  # a container, version 2
            ("memory/memory.limit_in_bytes", ""),  # a container, version 1
            ("system.slice/memory.max", "0::/system.slice/tidegate.service\n"),  # a unit's slice
            ("memory/pods/a/memory.limit_in_bytes", "4:cpu:/other\n5:memory:/pods/a\n"),
        )
    ):
        root = tmp_path / str(number)
        (root / file).parent.mkdir(parents=True)
        (root / file).write_text("max\n")
        own.write_text(groups)
        assert memory_bytes(root, own) == machine_bytes, file
        (root / file).write_text("104857600\n")
        assert memory_bytes(root, own) == 100 * MIB, file


def test_each_process_needs_its_part_beside_the_budget(tmp_path: Path) -> None:
    config = replace(load_lines(tmp_path, ""), memory_bytes_max=1000 * MIB)
    assert memory_shortage(config, 1, 1150 * MIB) is None
    for workers, limit_mib, is_sure in ((1, 1149, False), (1, 999, True), (2, 1449, False)):
        found = memory_shortage(config, workers, limit_mib * MIB)
        assert found is not None
        assert found[1] is is_sure
