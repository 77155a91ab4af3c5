"""The command line: what each command calls, what it returns, and what it must not import."""

import re
import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

from storage.checks.finding import WHAT_TO_DO, FindingKind
from tests.support.for_each import for_each
from tidegate import cli
from tidegate.commands.table_options import PACKAGES
from tidegate.config import Config

Captured = pytest.CaptureFixture[str]

FILE = "upstream.bootstrap.servers=broker:9092\nremote.log.storage.manager.class.name=tidegate.PlainObjects\n"


@pytest.fixture
def file(tmp_path: Path) -> str:
    path = tmp_path / "tidegate.properties"
    path.write_text(FILE)
    return str(path)


def fake_module(monkeypatch: pytest.MonkeyPatch, module_name: str, **functions: Callable[..., object]) -> None:
    """Stands in for a module that the command imports when it is chosen."""
    module = ModuleType(module_name)
    for name, function in functions.items():
        setattr(module, name, function)
    monkeypatch.setitem(sys.modules, module_name, module)


@for_each("code", [0, 1])
def test_serve_runs_the_application_and_returns_its_code(file: str, code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    served: list[Config] = []

    async def serve(config: Config) -> int:
        served.append(config)
        return code

    fake_module(monkeypatch, "tidegate.serve", serve=serve)
    assert cli.main(["serve", file]) == code
    assert str(served[0].upstream.bootstrap_servers[0]) == "broker:9092"


NEEDED = {
    "stat": ["a:0:1"],
    "cat": ["a:0"],
    "metadata import": ["lines"],
    **{f"deletions {word}": ["a"] for word in ("hold", "approve", "release")},
    "takeover": ["--from", "lines", "--log-dir", "logs", "--dry-run"],
}
"""What a command takes besides FILE."""


TABLES = ("scan", "sql")
"""They read what of FILE is the tier's, and take packages that others do not need."""


@for_each("command", [command.name for command in cli.COMMANDS if command.name not in ("health", *TABLES)])
def test_every_configuration_problem_is_a_line_and_code_2(command: str, tmp_path: Path, capsys: Captured) -> None:
    path = tmp_path / "bad.properties"
    path.write_text(f"{FILE}mode=x\nlog.level=y\n")
    assert cli.main([*command.split(), str(path), *NEEDED.get(command, ())]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "tidegate: bad.properties:3: mode = x: must be one of replica, standalone\n"
        "tidegate: bad.properties:4: log.level = y: must be one of debug, info, warning, error\n"
    )


@for_each("command, extra", [("scan", "table"), ("sql", "sql")])
def test_what_a_command_lacks_is_said_with_what_brings_it(
    command: str, extra: str, file: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    monkeypatch.setitem(PACKAGES, extra, ("sys", "not_there", "not_there_either"))
    assert cli.main([command, file, "orders"]) == 2
    said = "tidegate: not_there and not_there_either cannot be imported: pip install 'tidegate[" + extra + "]'\n"
    assert capsys.readouterr() == ("", said)


def help_of(name: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> str:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as caught:
        cli.main([*name.split(), "--help"])
    assert caught.value.code == 0
    return capsys.readouterr().out


DOCS = Path(cli.__file__).parents[1] / "docs"
DELETIONS = ("deletions list", "deletions hold", "deletions approve", "deletions release")
TOOLS = ("ls", "stat", "cat", "scan", "sql", "verify", "metadata dump", "metadata import", *DELETIONS, "diff", "gc")


@for_each("name", TOOLS)
def test_every_option_of_a_tool_is_in_its_documentation_and_json_is_among_them(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: Captured
) -> None:
    text = (DOCS / "tools.md").read_text()
    options = set(re.findall(r"--[a-z-]+", help_of(name, monkeypatch, capsys))) - {"--help"}
    assert options <= set(re.findall(r"--[a-z-]+", text))
    assert "--json" in options


def test_every_example_of_the_tools_documentation_is_a_command() -> None:
    """What runs it is in the parsed options; it is not run here."""
    text = (DOCS / "tools.md").read_text()
    lines = re.findall(r"^ *(tidegate .*)$", text, re.MULTILINE)
    written = [re.split(" > | +#", line)[0].replace("FILE", "tidegate.properties") for line in lines]
    examples = [shlex.split(line)[1:] for line in written]
    chosen = {cli.parser().parse_args(example).run: None for example in examples}
    first = cli.parser().parse_args(["init"]).run
    assert [*chosen] == [first, *(command.run for command in cli.COMMANDS if command.name in TOOLS)]


COMMAND_LINE = r"(?:[` ]|(?<!b)\")tidegate (?!import )((?:(?:metadata|deletions) )?[a-z]+)((?: --[a-z-]+)*)[` ,;:.\"]"


def test_messages_name_commands_and_options_that_there_are(capsys: Captured) -> None:
    """Failed before: operators were told of `tidegate check --orphans`."""
    named = set()
    for package in ("metrics", "protocol", "proxy", "standalone", "storage", "tidegate"):
        for path in (DOCS.parent / package).rglob("*.py"):
            found = re.findall(COMMAND_LINE, path.read_text())
            named |= {(command, option) for command, options in found for option in options.split() or [""]}
    assert {("gc", ""), ("metadata dump", ""), ("copy", "")} <= named
    for command, option in sorted(named):
        with pytest.raises(SystemExit, match="0"):
            cli.main([*command.split(), "--help"])
        assert option in capsys.readouterr().out, (command, option)


def test_the_documentation_has_what_to_do_about_each_kind_of_finding() -> None:
    text = (DOCS / "tools.md").read_text().partition("\n## verify\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (.*) \| (.*) \|$", text, re.MULTILINE)[1:]
    said = {kind: words for kinds, words in rows for kind in kinds.split(", ")}
    assert said == {kind.value: WHAT_TO_DO[kind] for kind in FindingKind}


@for_each(
    "arguments, said",
    [
        (["ls", "f", "a:b"], "'a:b' is not TOPIC or TOPIC:PARTITION"),
        (["stat", "f", "a:0"], "'a:0' is neither a segment's id nor TOPIC:PARTITION:OFFSET"),
        (["stat", "f", "short"], "not a Kafka uuid"),
        (["cat", "f", "a:0", "--from-offset", "-1"], "'-1' is not a number from 0 on"),
        (["cat", "f", "a:0", "--from-timestamp", "noon"], "'noon' is neither milliseconds nor like 2026-01-31T12:00"),
        (["rewrap", "f", "--per-second", "0"], "'0' is not a number above 0"),
    ],
)
def test_a_wrong_argument_is_named_with_what_is_right(arguments: list[str], said: str, capsys: Captured) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    assert said in (told := capsys.readouterr().err)
    assert f"tidegate {arguments[0]} --help shows how it is used" in told
