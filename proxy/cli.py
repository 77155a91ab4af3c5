"""The command line: `tidegate serve FILE`, `check FILE`, `rewrap FILE`, `--version` (docs/protocol.md#exit-codes).

Only the chosen command's modules are imported: `tidegate --help` must answer at once, and importing trio, boto3 and
Kafka's schemas takes seconds on a small machine. Exit codes are in `proxy.process.exit_codes`.
"""

import argparse
import os
import signal
import sys
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, NoReturn

from proxy.process import exit_codes

if TYPE_CHECKING:
    from proxy.config import Config


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; argparse itself exits with 2 on a wrong command line, 0 on --help."""
    options = _parser().parse_args(arguments)
    try:
        match options.command:
            case "serve":
                return _serve(options.file)
            case "rewrap":
                return _rewrap(options)
            case _:
                return _check(options)
    except KeyboardInterrupt:
        print("tidegate: interrupted", file=sys.stderr)
        return exit_codes.FOUND_WRONG


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="tidegate",
        description="A remote read replica for Kafka: serves old offsets straight from the KIP-405 tier.",
        epilog="Exit codes: 0 done, 1 found something wrong, 2 usage or configuration.",
    )
    parser.add_argument("--version", action=_Version, help="print the version and exit")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND", required=True)
    serve = commands.add_parser("serve", help="run the proxy", description="Run the proxy until SIGTERM.")
    check = commands.add_parser(
        "check",
        help="check configuration, upstream, tier and metadata",
        description="Check the configuration, reach upstream, tier and metadata, and show each key with its origin.",
    )
    rewrap = commands.add_parser(
        "rewrap",
        help="put the data keys of old segments under the active key pair",
        description="Put the data keys of old segments under the active key pair. A dry run unless --write is given.",
    )
    rewrap.add_argument("--write", action="store_true", help="replace the manifests; else only say what would be")
    rewrap.add_argument(
        "--per-second", metavar="N", type=_positive, default=20.0, help="manifests looked at in a second; default 20"
    )
    rewrap.add_argument("--after", metavar="NAME", default="", help="where a run that was ended goes on")
    check.add_argument("--all", action="store_true", help="open every segment, not 200 spread over time")
    check.add_argument("--json", action="store_true", help="one JSON document: keys, findings by section, verdict")
    for command in (serve, check, rewrap):
        command.add_argument("file", metavar="FILE", type=Path, help="the properties file (docs/configuration.md)")
    return parser


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


def _serve(file: Path) -> int:
    # Until the application hears signals itself, which takes a second or two to be imported: SIGTERM ends the start
    # as it should, and SIGHUP, at which the files are read again, does not.
    before = [
        (number, signal.signal(number, handler))
        for number, handler in ((signal.SIGTERM, _leave), (signal.SIGHUP, signal.SIG_IGN))
    ]
    try:
        config = _load(file)
        if config is None:
            return exit_codes.USAGE
        from proxy.workers.cache_parts import settle
        from proxy.workers.shares import worker_count

        workers = worker_count(config)
        if config.cache.path is not None:
            from proxy.process.logs import configure_logs

            configure_logs(config.log.level, config.log.format)
            settle(config.cache.path, workers)
        if workers > 1:
            from proxy.workers.supervisor import serve as supervise

            return supervise(config, workers)
        import trio

        from proxy.serve import serve

        return trio.run(serve, config)
    finally:
        for number, handler in before:
            signal.signal(number, handler)


def _leave(_number: int, _frame: FrameType | None) -> NoReturn:
    # Not sys.exit: a signal comes anywhere in an import, also in a weak reference's callback or before somebody's
    # bare `except`, where SystemExit is thrown away and the process would go on. Nothing has begun that wants closing.
    os._exit(exit_codes.DONE)


def _check(options: argparse.Namespace) -> int:
    config = _load(options.file)
    if config is None:
        return exit_codes.USAGE
    from proxy.commands.check import run
    from proxy.workers.shares import worker_count

    return run(config, sys.stdout, opens_all=options.all, as_json=options.json, workers=worker_count(config))


def _rewrap(options: argparse.Namespace) -> int:
    config = _load(options.file)
    if config is None:
        return exit_codes.USAGE
    from proxy.commands.rewrap import RewrapOptions, run

    wanted = RewrapOptions(writes=options.write, per_second=options.per_second, after=options.after)
    return run(config, wanted, sys.stdout)


def _positive(text: str) -> float:
    number = float(text)
    if not 0 < number < float("inf"):
        raise ValueError
    return number


def _load(file: Path) -> "Config | None":
    """The configuration, its warnings on standard error; None after every problem was written there, a line each."""
    from proxy.config import load
    from storage.config import ConfigError

    try:
        config = load(file, os.environ)
    except ConfigError as error:
        for problem in error.problems:
            print(f"tidegate: {problem}", file=sys.stderr)
        return None
    for warning in config.warnings:
        print(f"tidegate: warning: {warning}", file=sys.stderr)
    return config
