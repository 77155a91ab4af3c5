"""What README tells users to write and to run is taken at its word."""

import re
from pathlib import Path

from tidegate.config import load

ROOT = Path(__file__).parents[2]


def _readme() -> str:
    return (ROOT / "README.md").read_text()


def test_the_properties_file_is_one_that_loads(tmp_path: Path) -> None:
    """A comment behind a value would be a part of the value: Java properties have none there."""
    (block,) = re.findall(r"^    # tidegate\.properties.*?\n\n", _readme(), re.DOTALL | re.MULTILINE)
    broker_file = tmp_path / "server.properties"
    broker_file.write_text(
        "remote.log.storage.manager.class.name=org.apache.kafka.server.log.remote.storage.LocalTieredStorage\n"
        "rsm.config.dir=/tier\n"
    )
    file = tmp_path / "tidegate.properties"
    lines = "".join(f"{line.strip()}\n" for line in block.splitlines())
    file.write_text(lines.replace("/etc/kafka/server.properties", str(broker_file)))
    config = load(file, {})
    assert config.remote_storage_config["dir"] == "/tier"
    assert (config.proxy.advertised_host, config.proxy.listen.port) == ("tidegate.example.org", 19092)


def test_the_make_targets_exist() -> None:
    rules = "".join((ROOT / name).read_text() for name in ("Makefile", "tests/tools.mk"))
    assert set(re.findall(r"make ([a-z-]+)", _readme())) <= set(re.findall(r"^([a-z-]+):", rules, re.MULTILINE))
