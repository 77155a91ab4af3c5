"""Each key as it took effect: once, in the table's order, with its origin."""

from pathlib import Path

from proxy.config.keys import SERVE_KEYS
from tests.support.config_files import load_lines, shown


def test_every_key_is_shown_once(tmp_path: Path) -> None:
    names = [key.name for key in load_lines(tmp_path, "rsm.config.a=1\n").effective]
    assert names == [*(key.name for key in SERVE_KEYS.all_keys()), "rsm.config.a"]


def test_an_origin_is_a_line_a_variable_or_the_default(tmp_path: Path) -> None:
    (tmp_path / "server.properties").write_text("rsm.config.a=1\nrsm.config.b=1\nrsm.config.c=1\n")
    config = load_lines(
        tmp_path,
        "broker.config=server.properties\nrsm.config.b=2\nrsm.config.c=2\nlog.level=debug\n",
        environ={"TIDEGATE_RSM_CONFIG_C": "3", "TIDEGATE_LOG_LEVEL": "error"},
    )
    assert shown(config, "rsm.config.a") == ("1", "broker.config server.properties:1")
    assert shown(config, "rsm.config.b") == ("2", "tidegate.properties:4")
    assert shown(config, "rsm.config.c") == ("3", "environment TIDEGATE_RSM_CONFIG_C")
    assert shown(config, "log.level") == ("error", "environment TIDEGATE_LOG_LEVEL")
    assert shown(config, "tier.linger.ms") == ("20", "default")


def test_a_secret_is_known_by_its_text_and_shown_by_its_mask_alone(tmp_path: Path) -> None:
    config = load_lines(tmp_path, "rsm.config.password=a-secret\nproxy.tls.key.password=a-secret\n", minimal=True)
    secrets = [key for key in config.effective if key.text == "a-secret"]
    assert [key.value for key in secrets] == ["[hidden]", "[hidden]"]
    assert "a-secret" not in repr(secrets)
    assert "a-secret" not in "".join(map(str, secrets))
