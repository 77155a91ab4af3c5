"""`tidegate rewrap`: dry first, then written, at a pace, and what it prints of it."""

import io
from collections.abc import Sequence
from pathlib import Path

import pytest

from storage.object_store.files.store import FileSystemStore
from tests.storage.formats.aiven.all.test_rewrap import Tier, both_pairs, make_tier
from tests.support.writing_tiers import object_key
from tidegate import cli
from tidegate.commands import rewrap
from tidegate.commands.rewrap import RewrapOptions
from tidegate.config import load

Captured = pytest.CaptureFixture[str]

AIVEN = "io.aiven.kafka.tieredstorage.RemoteStorageManager"


@pytest.fixture
def tier(tmp_path: Path) -> Tier:
    return make_tier(tmp_path, FileSystemStore(tmp_path / "bucket"))


@pytest.fixture
def file(tier: Tier) -> Path:
    return written(tier.folder, AIVEN, both_pairs(tier.folder, "key2"))


def written(folder: Path, class_name: str, keys: dict[str, str]) -> Path:
    lines = ["upstream.bootstrap.servers=broker:9092", f"remote.log.storage.manager.class.name={class_name}"]
    backend = "io.aiven.kafka.tieredstorage.storage.filesystem.FileSystemStorage"
    store = {"storage.backend.class": backend, "storage.root": str(folder / "bucket")}
    path = folder / "tidegate.properties"
    path.write_text("\n".join([*lines, *(f"rsm.config.{key}={value}" for key, value in {**store, **keys}.items()), ""]))
    return path


def rewrapped(file: Path, *options: str, capsys: Captured) -> tuple[int, Sequence[str]]:
    code = cli.main(["rewrap", str(file), "--per-second", "1000000", *options])
    return code, capsys.readouterr().out.splitlines()


def test_it_is_dry_unless_it_is_told_to_write(tier: Tier, file: Path, capsys: Captured) -> None:
    found = "1 already under the active key pair, 1 not encrypted"
    for _ in range(2):
        assert rewrapped(file, capsys=capsys) == (
            0,
            [
                f"ok      5 manifests: 3 to be rewrapped, {found}",
                "ok      nothing was written: this was a dry run; --write does it",
            ],
        )
    assert rewrapped(file, "--write", capsys=capsys) == (0, [f"ok      5 manifests: 3 rewrapped, {found}"])
    assert tier.key_ids() == ["key2"] * 3
    assert rewrapped(file, "--write", capsys=capsys)[1][0].startswith("ok      5 manifests: 0 rewrapped, 4 already")


def test_what_failed_is_a_line_and_the_exit_code(tier: Tier, file: Path, capsys: Captured) -> None:
    tier.store.put(object_key(tier.old[1], "rsm-manifest"), b"{}")
    code, lines = rewrapped(file, "--write", capsys=capsys)
    assert code == 1
    assert lines[0] == f"WRONG   {tier.name(tier.old[1])}: version is missing"
    assert lines[1].endswith("1 not encrypted, 1 failed")


def test_it_goes_on_where_it_was_interrupted(tier: Tier, file: Path, capsys: Captured) -> None:
    waits: list[float] = []

    def wait(seconds: float) -> bool:
        waits.append(seconds)
        if len(waits) == 2:
            raise KeyboardInterrupt
        return False

    out = io.StringIO()
    with pytest.raises(KeyboardInterrupt):
        rewrap.run(load(file, {}), RewrapOptions(writes=True, per_second=4, after=""), out, wait=wait)
    assert waits == [0.25, 0.25]
    name = tier.name(tier.old[1])
    assert out.getvalue() == f"ok      interrupted; what is done stays. Go on with: --after '{name}'\n"
    assert tier.key_ids() == ["key2", "key2", "key1"]
    code, lines = rewrapped(file, "--write", "--after", name, capsys=capsys)
    assert (code, lines[0][:33]) == (0, "ok      3 manifests: 1 rewrapped,")
    assert tier.key_ids() == ["key2"] * 3


def test_a_tier_without_an_active_pair_is_refused(tier: Tier, capsys: Captured) -> None:
    code, lines = rewrapped(written(tier.folder, AIVEN, {"key.prefix": "tier/"}), capsys=capsys)
    assert (code, lines) == (2, ["WRONG   rsm.config.encryption.key.pair.id is not set: it names the pair to wrap by"])
