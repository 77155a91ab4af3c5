"""The command line: `tidegate serve FILE`, `check FILE`, … `--version` (docs/protocol.md#exit-codes).

A command is one entry of COMMANDS: its name, a line of help, what adds its arguments, and what runs it. Only the chosen
command's modules are imported, by what runs it: `tidegate --help` must answer at once, and importing trio, boto3 and
Kafka's schemas takes seconds on a small machine. Exit codes are in `tidegate.exit_codes`.
"""

import argparse
import os
import signal
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Final, NoReturn, TypeVar

from tidegate import exit_codes
from tidegate.command_parser import Parser, found_file
from tidegate.commands.cluster_options import add_diff_arguments, add_gc_arguments
from tidegate.commands.table_options import (
    add_scan_arguments,
    add_sql_arguments,
    missing_packages,
    scan_options,
    sql_options,
)

if TYPE_CHECKING:
    from storage.model import Uuid
    from tidegate.commands.selection import Place
    from tidegate.config import Config

T = TypeVar("T")

Run = Callable[[argparse.Namespace], int]


@dataclass(frozen=True, slots=True)
class Command:
    """A name of two words belongs to a group of the first one. Each takes FILE (`tidegate.command_parser`)."""

    name: str
    help: str
    run: Run
    add_arguments: Callable[[argparse.ArgumentParser], None] | None = None
    description: str = ""
    logs: bool = False
    """Its first log line names FILE, and may be JSON; another command says by itself which one it has found."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; argparse itself exits with 2 on a wrong command line, 0 on --help."""
    words = sys.argv[1:] if arguments is None else list(arguments)
    if words[:1] == [SPARK]:
        from pipeline.jobs import command_line

        return command_line.main(_with_found_file(words[1:]))
    options = parser().parse_args(words)
    run: Run = options.run
    if not getattr(options, "logs", True):
        _say_found(options)
    try:
        return run(options)
    except KeyboardInterrupt:
        print("tidegate: interrupted", file=sys.stderr)
        return exit_codes.FOUND_WRONG


def parser() -> argparse.ArgumentParser:
    """All commands and what they take."""
    parser = Parser(
        prog="tidegate", description="A remote read replica for Kafka. Exit codes: 0 done, 1 found wrong, 2 usage."
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    groups: dict[str, argparse._SubParsersAction[Parser]] = {"": commands}
    for command in COMMANDS:
        group, _, name = command.name.rpartition(" ")
        if group not in groups:
            parent = commands.add_parser(group, help=GROUPS[group], description=f"{_upper(GROUPS[group])}.")
            groups[group] = parent.add_subparsers(title="commands", metavar="COMMAND", required=True)
        description = command.description or f"{_upper(command.help)}."
        added = groups[group].add_parser(name, help=command.help, description=description)
        added.add_file()
        if command.add_arguments is not None:
            command.add_arguments(added)
        added.set_defaults(run=command.run, logs=command.logs)
    files = "lay out man page, completions, systemd's unit, alert rules and dashboard below a folder"
    added = commands.add_parser("files", help=files, description=f"{_upper(files)}, such as /usr/local.")
    added.add_argument("folder", metavar="DIR", type=Path, help="made where it is not there")
    added.set_defaults(run=_files)
    about = "write a first FILE out of a broker's server.properties, and say which rights Tidegate needs"
    added = commands.add_parser("init", help=about, description=f"{_upper(about)}. On a terminal it asks.")
    _init_arguments(added)
    commands.add_parser(SPARK, help="run a job on Spark: backfill, audit (docs/spark.md)")
    return parser


def _upper(words: str) -> str:
    return words[0].upper() + words[1:]


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __init__(
        self,
        option_strings: Sequence[str],
        dest: str,
        help: str | None = None,  # noqa: A002  # argparse passes it by this name
    ) -> None:
        super().__init__(option_strings, dest=argparse.SUPPRESS, default=argparse.SUPPRESS, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, *_: object) -> None:
        from importlib.metadata import PackageNotFoundError, version

        try:
            print(f"tidegate {version('tidegate')}")
        except PackageNotFoundError:
            print("tidegate (not installed: run from a checkout)")
        parser.exit(exit_codes.DONE)


def _serve(options: argparse.Namespace) -> int:
    # Until the application hears signals itself, which takes a second or two to be imported: SIGTERM ends the start
    # as it should, and SIGHUP, at which the files are read again, does not.
    before = [
        (number, signal.signal(number, handler))
        for number, handler in ((signal.SIGTERM, _leave), (signal.SIGHUP, signal.SIG_IGN))
    ]
    try:
        config = _load(options)
        if config is None:
            return exit_codes.USAGE
        from tidegate.workers.cache_parts import settle
        from tidegate.workers.shares import worker_count

        workers = worker_count(config)
        if config.cache.path is not None:
            from tidegate.logs import configure_logs

            configure_logs(config.log.level, config.log.format)
            settle(config.cache.path, workers)
        if workers > 1:
            from tidegate.workers.supervisor import serve as supervise

            return supervise(config, workers)
        import trio

        from tidegate.serve import serve

        return trio.run(serve, config)
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    # Not sys.exit: a signal comes anywhere in an import, also in a weak reference's callback or before somebody's
    # bare `except`, where SystemExit is thrown away and the process would go on. Nothing has begun that wants closing.
    os._exit(exit_codes.DONE)


def _configured(run: "Callable[[Config, argparse.Namespace], int]") -> Run:
    """Load the configuration first; exit_codes.USAGE if that cannot be."""

    def run_with_config(options: argparse.Namespace) -> int:
        config = _load(options)
        return exit_codes.USAGE if config is None else run(config, options)

    return run_with_config


def _check_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--all", action="store_true", help="open every segment, not 200 spread over time")
    parser.add_argument("--json", action="store_true", help="one JSON document: keys, findings by section, verdict")
    parser.add_argument("--keys", action="store_true", help="list keys that have their defaults, too")


def _check(config: "Config", options: argparse.Namespace) -> int:
    from tidegate.commands.check import run
    from tidegate.workers.shares import worker_count

    return run(
        config,
        sys.stdout,
        opens_all=options.all,
        as_json=options.json,
        shows_defaults=options.keys,
        workers=worker_count(config),
    )


def _copy_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--once", action="store_true", help="copy all that is there now, look at retention once, and end"
    )


def _copy(config: "Config", options: argparse.Namespace) -> int:
    from tidegate.config.load import copy_problems

    problems = copy_problems(config)
    for problem in problems:
        print(f"tidegate: {problem}", file=sys.stderr)
    if problems:
        return exit_codes.USAGE
    from tidegate.commands.copy import CopyOptions, run  # what the extra `copy` brings

    return run(config, CopyOptions(once=options.once))


def _rewrap_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--write", action="store_true", help="replace the manifests; else only say what would be")
    parser.add_argument(
        "--per-second", metavar="N", type=_positive, default=20.0, help="manifests looked at in a second; default 20"
    )
    parser.add_argument("--after", metavar="NAME", default="", help="where a run that was ended goes on")


def _rewrap(config: "Config", options: argparse.Namespace) -> int:
    from tidegate.commands.rewrap import RewrapOptions, run

    wanted = RewrapOptions(writes=options.write, per_second=options.per_second, after=options.after)
    return run(config, wanted, sys.stdout)


def _takeover_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--log-dir",
        metavar="DIR",
        type=Path,
        action="append",
        required=True,
        help="a folder of the broker's log.dirs; once for each",
    )
    parser.add_argument(
        "--from",
        metavar="DUMP",
        dest="dump",
        type=Path,
        required=True,
        help="what `tidegate metadata dump FILE` wrote while the brokers ran, after the last copier had stopped",
    )
    parser.add_argument("--topic", metavar="T", help="only this topic; default: all that are in the tier")
    does = parser.add_mutually_exclusive_group(required=True)
    does.add_argument("--dry-run", action="store_true", help="say what would be written")
    does.add_argument("--yes", action="store_true", help="write it; what the files held is kept beside them")
    _json_argument(parser)


def _takeover(config: "Config", options: argparse.Namespace) -> int:
    from tidegate.commands.takeover import TakeoverOptions, run

    wanted = TakeoverOptions(
        dump=options.dump, log_dirs=options.log_dir, topic=options.topic, writes=options.yes, as_json=options.as_json
    )
    return run(config, wanted, sys.stdout)


def _diff(config: "Config", options: argparse.Namespace) -> int:
    from storage.config.model import HostPort
    from tidegate.commands.diff import DiffOptions, run

    wanted = DiffOptions(
        topic=options.topic,
        partitions=options.partitions,
        samples=options.samples,
        seed=options.seed,
        per_second=options.per_second,
        bootstrap=None if options.bootstrap is None else HostPort(*options.bootstrap),
        command_config=options.command_config,
    )
    return run(config, wanted, sys.stdout, is_json=options.json)


def _gc(config: "Config", options: argparse.Namespace) -> int:
    from tidegate.commands.gc import GcOptions, run

    wanted = GcOptions(
        older_than_ms=options.older_than,
        orphan_percent_max=options.max_orphans,
        plan=options.plan,
        deletes=options.yes,
        i_own_this_tier=options.i_own_this_tier,
    )
    return run(config, wanted, sys.stdout, is_json=options.json)


def _health(options: argparse.Namespace) -> int:
    from tidegate.health_check import main as ask

    return ask(options.file, os.environ)


def _init_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "file", metavar="FILE", nargs="?", type=Path, default=Path("tidegate.properties"), help="what is written"
    )
    parser.add_argument("--broker-config", metavar="PATH", type=Path, help="a copy of a broker's server.properties")
    parser.add_argument("--bootstrap", metavar="HOST:PORT", help="brokers; default: what the broker's file advertises")
    parser.add_argument("--listen", metavar="HOST:PORT", help="where Tidegate listens; default 127.0.0.1:19092")
    parser.add_argument("--security-protocol", metavar="NAME", help="how brokers are reached; default: their file's")
    parser.add_argument("--mechanism", metavar="NAME", help="with SASL, how it signs in; default SCRAM-SHA-512")
    parser.add_argument("--username", metavar="NAME", help="with SASL, as whom; its password is read from a variable")
    parser.add_argument("--ca", metavar="PEM", type=Path, help="with TLS, brokers' authority; default: the system's")
    parser.add_argument("--force", action="store_true", help="write over a FILE that is there")
    parser.set_defaults(run=_init)


def _init(options: argparse.Namespace) -> int:
    from tidegate.commands.init import InitOptions, run

    given = InitOptions(**{name: getattr(options, name) for name in InitOptions.__dataclass_fields__})
    return run(given, os.environ, _asked if sys.stdin.isatty() else None, sys.stdout)


def _asked(question: str, default: str) -> str:
    return input(f"{question} [{default}]: ").strip() or default


def _files(options: argparse.Namespace) -> int:
    from tidegate.commands.files import run

    return run(options.folder, sys.stdout)


def _place_arguments(parser: argparse.ArgumentParser, *, is_required: bool = False) -> None:
    """Add the argument for a part of the tier, in the notation of all tools."""
    parser.add_argument(
        "place",
        metavar="TOPIC:PARTITION" if is_required else "TOPIC[:PARTITION]",
        nargs=None if is_required else "?",
        type=_place,
        help="a partition of the tier" if is_required else "a topic, or a partition; default: all",
    )
    _topic_id_argument(parser)


def _topic_id_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--topic-id", metavar="ID", type=_topic_id, help="which one, if a topic was created again")


def _json_argument(parser: argparse.ArgumentParser, what: str = "print one JSON document") -> None:
    parser.add_argument("--json", action="store_true", dest="as_json", help=what)


_LINES_ANYWAY = "JSON lines, as without it: every tool takes the option"


def _ls_arguments(parser: argparse.ArgumentParser) -> None:
    _place_arguments(parser)
    parser.add_argument("--stored", action="store_true", help="list the store, for sizes as stored")
    _json_argument(parser)


def _ls(config: "Config", options: argparse.Namespace) -> int:
    from tidegate.commands.ls import LsOptions, run

    given = LsOptions(
        place=options.place, topic_id=options.topic_id, lists_store=options.stored, as_json=options.as_json
    )
    return run(config, given, sys.stdout)


def _stat_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "segment", metavar="SEGMENT", type=_segment, help="its id, or TOPIC:PARTITION:OFFSET of an offset that it holds"
    )
    _topic_id_argument(parser)
    _json_argument(parser)


def _stat(config: "Config", options: argparse.Namespace) -> int:
    from tidegate.commands.stat import StatOptions, run

    wanted = StatOptions(segment=options.segment, topic_id=options.topic_id, as_json=options.as_json)
    return run(config, wanted, sys.stdout)


def _cat_arguments(parser: argparse.ArgumentParser) -> None:
    _place_arguments(parser, is_required=True)
    parser.add_argument("--from-offset", metavar="N", type=_count, default=0, help="the first; default 0")
    parser.add_argument("--to-offset", metavar="N", type=_count, help="the last")
    parser.add_argument("--from-timestamp", metavar="TIME", type=_time_ms, help="of records not older; ms or ISO 8601")
    parser.add_argument("--to-timestamp", metavar="TIME", type=_time_ms, help="of records not newer; ms or ISO 8601")
    parser.add_argument("--key", metavar="TEXT", help="only records of this very key")
    parser.add_argument("--max-records", metavar="N", type=_count, help="end after so many")
    parser.add_argument("--read-committed", action="store_true", help="leave records of aborted transactions out")
    parser.add_argument("--dead", action="store_true", help="only segments of records that upstream has lost")
    _json_argument(parser, _LINES_ANYWAY)


def _cat(config: "Config", options: argparse.Namespace) -> int:
    from tidegate.commands.cat import CatOptions, run

    wanted = CatOptions(
        place=options.place,
        topic_id=options.topic_id,
        from_offset=options.from_offset,
        to_offset=options.to_offset,
        from_timestamp_ms=options.from_timestamp,
        to_timestamp_ms=options.to_timestamp,
        key=None if options.key is None else os.fsencode(options.key),
        max_records=options.max_records,
        read_committed=options.read_committed,
        dead=options.dead,
    )
    return run(config, wanted, sys.stdout)


def _scan(options: argparse.Namespace) -> int:
    if missing := missing_packages("table"):
        print(f"tidegate: {missing}", file=sys.stderr)
        return exit_codes.USAGE
    from tidegate.commands.scan import run

    return run(scan_options(options))


def _sql(options: argparse.Namespace) -> int:
    if missing := missing_packages("sql"):
        print(f"tidegate: {missing}", file=sys.stderr)
        return exit_codes.USAGE
    from tidegate.commands.sql import run

    return run(sql_options(options))


def _verify_arguments(parser: argparse.ArgumentParser) -> None:
    _place_arguments(parser)
    parser.add_argument("--sample", metavar="N", type=_count, help="so many segments of each partition, spread over it")
    parser.add_argument("--shallow", action="store_true", help="objects, sizes and indexes; read no log")
    _json_argument(parser)


def _verify(config: "Config", options: argparse.Namespace) -> int:
    from tidegate.commands.verify import VerifyOptions, run

    wanted = VerifyOptions(
        place=options.place,
        topic_id=options.topic_id,
        sample=options.sample,
        deep=not options.shallow,
        as_json=options.as_json,
    )
    return run(config, wanted, sys.stdout)


def _dump_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--current", action="store_true", help="the segments there are now, without the history of what was deleted"
    )
    _json_argument(parser, _LINES_ANYWAY)


def _dump(config: "Config", options: argparse.Namespace) -> int:
    from tidegate.commands.metadata import dump

    return dump(config, sys.stdout, current=options.current)


def _import_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("lines", metavar="LINES", type=Path, help="a file that `tidegate metadata dump` wrote")
    parser.add_argument("--yes", action="store_true", help="publish the records; else only say what would be")
    parser.add_argument("--append", action="store_true", help="also if the topic has records of these segments already")
    parser.add_argument(
        "--after", metavar="LINE", type=_count, default=0, help="where an import that broke off goes on"
    )
    _json_argument(parser)


def _import(config: "Config", options: argparse.Namespace) -> int:
    from tidegate.commands.metadata import ImportOptions, import_lines

    wanted = ImportOptions(
        lines=options.lines, writes=options.yes, appends=options.append, after=options.after, as_json=options.as_json
    )
    return import_lines(config, wanted, sys.stdout)


def _deletions_arguments(parser: argparse.ArgumentParser) -> None:
    _place_arguments(parser)
    _json_argument(parser)


def _deletions(config: "Config", options: argparse.Namespace) -> int:
    from tidegate.commands.deletions import DeletionOptions, list_deletions

    wanted = DeletionOptions(place=options.place, topic_id=options.topic_id, as_json=options.as_json)
    return list_deletions(config, wanted, sys.stdout)


def _word_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("place", metavar="TOPIC[:PARTITION]", type=_place, help="a topic of the tier, or a partition")
    _topic_id_argument(parser)
    _json_argument(parser)


def _word(word: str) -> Run:
    """Return what runs `deletions hold`, `approve` or `release`."""

    def run(config: "Config", options: argparse.Namespace) -> int:
        from tidegate.commands.deletions import DeletionOptions, Word, say

        wanted = DeletionOptions(place=options.place, topic_id=options.topic_id, as_json=options.as_json)
        return say(config, Word[word], wanted, sys.stdout)

    return _configured(run)


# What arguments may look like. The user sees an ArgumentTypeError as it is.


def _place(text: str) -> "Place":
    from tidegate.commands.selection import parse_place

    return _parsed(parse_place, text)


def _segment(text: str) -> "Place | Uuid":
    from tidegate.commands.selection import parse_segment

    return _parsed(parse_segment, text)


def _topic_id(text: str) -> "Uuid":
    from storage.model import uuid_from_text

    return _parsed(uuid_from_text, text)


def _parsed(parse: Callable[[str], T], text: str) -> T:
    try:
        return parse(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


def _time_ms(text: str) -> int:
    """Milliseconds since the epoch; of ISO 8601 without a zone, UTC."""
    from datetime import UTC, datetime

    if text.isdecimal() and text.isascii():
        return int(text)
    try:
        at = datetime.fromisoformat(text)
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is neither milliseconds nor like 2026-01-31T12:00:00Z") from None
    return round((at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() * 1000)


def _count(text: str) -> int:
    if not (text.isdecimal() and text.isascii()) or int(text) >= 2**63:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number from 0 on")
    return int(text)


def _positive(text: str) -> float:
    with suppress(ValueError):
        if 0 < float(text) < float("inf"):
            return float(text)
    raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")


def _with_found_file(words: list[str]) -> list[str]:
    """Return a job's words with FILE, unless they name it."""
    found = found_file(os.environ)
    if found is None or not words or any(word.startswith(("--config", "-h", "--help")) for word in words):
        return words
    print(f"tidegate: FILE is {found[0]}, {found[1]}", file=sys.stderr, flush=True)
    return [*words, "--config", found[0]]


def _say_found(options: argparse.Namespace) -> None:
    """Say which FILE was found where none was named; beside standard output where a program may read that."""
    if options.found:
        is_read_by_people = options.run is _CHECK and not options.json
        out = sys.stdout if is_read_by_people else sys.stderr
        print(f"tidegate: FILE is {options.file}, {options.found}", file=out, flush=True)


def _load(options: argparse.Namespace) -> "Config | None":
    """The configuration, its warnings on standard error; None after every problem was written there, a line each."""
    from storage.config import ConfigError
    from tidegate.config import load

    try:
        config = load(options.file, os.environ)
    except ConfigError as error:
        if options.logs:
            _say_found(options)
        for problem in error.problems:
            print(f"tidegate: {problem}", file=sys.stderr)
        return None
    for warning in config.warnings:
        print(f"tidegate: warning: {warning}", file=sys.stderr)
    return config


SPARK: Final = "spark"
"""Has a command line of its own: a job, and what the job takes."""

GROUPS: dict[str, str] = {
    "metadata": "dump the tier's metadata, or import it",
    "deletions": "list what waits to be deleted; hold, approve or release it (standalone mode)",
}
"""What the commands of two words have in common, by the first word."""

_CHECK: Final = _configured(_check)

COMMANDS: Sequence[Command] = (
    Command("serve", "run the proxy", _serve, description="Run the proxy until SIGTERM.", logs=True),
    Command("health", "ask a running serve whether it is alive", _health),
    Command(
        "copy",
        "copy upstream's segments into the tier (standalone mode)",
        _configured(_copy),
        _copy_arguments,
        "Copy upstream's closed segments into the tier, and delete what is too old there, until SIGTERM.",
        logs=True,
    ),
    Command(
        "check",
        "check configuration, upstream, tier and metadata",
        _CHECK,
        _check_arguments,
        description="Check the configuration, reach upstream, tier and metadata, and show each key with its origin.",
    ),
    Command("ls", "list the tier's topics, partitions or segments", _configured(_ls), _ls_arguments),
    Command("stat", "show one segment: objects, manifest, indexes", _configured(_stat), _stat_arguments),
    Command("cat", "print records of the tier as JSON lines", _configured(_cat), _cat_arguments),
    Command(
        "scan",
        "print a topic's rows: filtered, with typed values, in several formats",
        _scan,
        add_scan_arguments,
        "Print a topic's rows out of the tier. A table on a terminal, JSON lines in a pipe.",
    ),
    Command(
        "sql",
        "run a SELECT of DuckDB over topics of the tier",
        _sql,
        add_sql_arguments,
        "Run a SELECT of DuckDB over topics of the tier, which are its tables.",
    ),
    Command("verify", "check the tier's objects against its metadata", _configured(_verify), _verify_arguments),
    Command("metadata dump", "print the metadata topic as JSON lines", _configured(_dump), _dump_arguments),
    Command(
        "metadata import",
        "publish dumped records into a metadata topic",
        _configured(_import),
        _import_arguments,
        "Publish dumped records into a metadata topic. A dry run unless --yes is given.",
    ),
    Command(
        "deletions list",
        "list what waits to be deleted from the tier, and until when",
        _configured(_deletions),
        _deletions_arguments,
    ),
    Command("deletions hold", "delete nothing of it until it is released", _word("HOLD"), _word_arguments),
    Command("deletions approve", "delete now what waits of it", _word("APPROVE"), _word_arguments),
    Command("deletions release", "end its hold, so that its waits go on", _word("RELEASE"), _word_arguments),
    Command(
        "diff",
        "compare the brokers' answers with those of a running serve",
        _configured(_diff),
        add_diff_arguments,
        "Ask the brokers and a running serve the same questions, over a sample of what is in the tier, and compare.",
    ),
    Command(
        "gc",
        "delete objects and uploads that nothing refers to",
        _configured(_gc),
        add_gc_arguments,
        "Find objects and uploads that no metadata record refers to. Deletes only by a plan, with --yes.",
    ),
    Command(
        "rewrap",
        "put the data keys of old segments under the active key pair",
        _configured(_rewrap),
        _rewrap_arguments,
        "Put the data keys of old segments under the active key pair. A dry run unless --write is given.",
    ),
    Command(
        "takeover",
        "prepare a broker that is down to own a tier of mode=standalone",
        _configured(_takeover),
        _takeover_arguments,
        "Restore a broker's leader epochs and log starts from the tier, so that it does not delete the tier when it is "
        "started with remote storage on. The broker must be down, and so must all others that were not taken over yet.",
    ),
)
