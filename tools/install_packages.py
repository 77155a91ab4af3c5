"""Install locked packages by uv, where pip would find them: .venv/bin/python tools/install_packages.py ARGUMENTS [-- …]

ARGUMENTS are those that `pip install` and `uv pip install` have in common; `--` stands between two installations. uv
takes a thirtieth of pip's processor time. It is locked itself, in requirements/uv.txt, and pip installs it.

uv does not read pip's settings, and those who reach a mirror by them must go on to reach it. So this program asks pip
for them and hands them to uv. Where it cannot (a setting that uv has no counterpart for, a machine that uv has no wheel
for), or where uv fails, pip installs, and one line says why.

Standard library only: it runs before anything is installed.
"""

import ast
import importlib.metadata
import math
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

UV_LOCK = Path(__file__).resolve().parent.parent / "requirements" / "uv.txt"
REASON_CHARACTERS_MAX = 240

SECTIONS = ("global", "install", ":env:")
"""Sections of pip's configuration that `pip install` reads; later ones win."""
OTHER_NAMES = {"default-timeout": "timeout", "pypi-url": "index-url"}
WITHOUT_EFFECT = frozenset(
    (
        # What pip says, asks and keeps.
        *("config-file", "disable-pip-version-check", "log", "no-color", "no-input", "no-python-version-warning"),
        *("no-warn-conflicts", "no-warn-script-location", "progress-bar", "quiet", "root-user-action", "verbose"),
        *("cache-dir", "compile", "no-compile", "debug", "exists-action", "no-clean", "src"),
        # What a lock with hashes has settled, or the caller's arguments.
        *("break-system-packages", "no-deps", "pre", "prefer-binary", "require-hashes", "upgrade", "upgrade-strategy"),
        *("require-virtualenv", "require-venv"),
    )
)
"""Settings that change nothing about which files are installed, nor where they come from."""
BOOLEANS = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}
PROXY_VARIABLES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy")
PIP_TRUSTS_THE_SYSTEM_SINCE = (24, 2)


class UvCannot(Exception):
    """pip has to install; the message says why, and may hold secrets until `one_line` has been over it."""


@dataclass(frozen=True)
class Handover:
    """pip's settings as uv takes them. What may hold a password is in the environment, which others cannot list."""

    arguments: list[str] = field(default_factory=list)
    environment: dict[str, str] = field(default_factory=dict)


def main(arguments: Sequence[str]) -> int:
    installations = split(arguments)
    done = 0
    try:
        uv = [*installed_uv(), "pip", "install", "--quiet", "--python", sys.executable]
        handover = handed_over(
            pip_settings(pip_configuration()), os.environ, version(importlib.metadata.version("pip"))
        )
        for installation in installations:
            run_quietly([*uv, *handover.arguments, *installation], {**os.environ, **handover.environment})
            done += 1
    except UvCannot as reason:
        print(f"setup: pip installs, which takes longer: {one_line(str(reason))}", file=sys.stderr, flush=True)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    for installation in installations[done:]:
        exit_code = subprocess.run([*pip, *installation], check=False).returncode
        if exit_code != 0:
            return exit_code
    return 0


def split(arguments: Sequence[str]) -> list[list[str]]:
    """The arguments of each installation."""
    installations: list[list[str]] = [[]]
    for argument in arguments:
        if argument == "--":
            installations.append([])
        else:
            installations[-1].append(argument)
    return installations


def installed_uv() -> list[str]:
    """The command of the uv that is locked, which pip installs if it is not there."""
    locked = re.search(r"^uv==(\S+)", UV_LOCK.read_text("utf-8"), re.MULTILINE)
    try:
        is_there = locked is not None and importlib.metadata.version("uv") == locked[1]
    except importlib.metadata.PackageNotFoundError:
        is_there = False
    if not is_there:
        pip = (sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--require-hashes")
        run_quietly([*pip, "--no-compile", "--only-binary", ":all:", "-r", str(UV_LOCK)], os.environ)
    return [str(Path(sys.executable).parent / "uv")]


def pip_configuration() -> str:
    """Its settings, a line each, from its files and from the environment."""
    return run_quietly([sys.executable, "-m", "pip", "config", "list"], os.environ)


def pip_settings(listing: str) -> dict[str, str]:
    """Return what `pip config list` prints, as `pip install` goes by it: the last section that gives a setting wins."""
    found: dict[str, dict[str, str]] = {section: {} for section in SECTIONS}
    for line in listing.splitlines():
        key, _, literal = line.partition("=")
        section, _, name = key.partition(".")
        if section not in found:
            continue
        name = OTHER_NAMES.get(name, name)
        try:
            value = str(ast.literal_eval(literal))
        except (SyntaxError, ValueError):
            raise UvCannot(f"pip's setting {key} is not understood") from None
        # Newer versions of pip list the files' settings by file name: which file wins cannot be seen.
        if found[section].setdefault(name, value) != value:
            raise UvCannot(f"pip's setting {key} is given twice")
    return {name: value for section in SECTIONS for name, value in found[section].items() if value}


def handed_over(settings: Mapping[str, str], environ: Mapping[str, str], pip_version: tuple[int, ...]) -> Handover:
    """The same for uv.

    Raises:
        UvCannot: a setting that matters has no counterpart.
    """
    handover = Handover()
    for name, value in settings.items():
        if name in COUNTERPARTS:
            handover.environment.update(COUNTERPARTS[name](value))
        elif name in FLAGS:
            if boolean(name, value):
                handover.arguments.append(FLAGS[name])
        elif name != "cert" and name not in WITHOUT_EFFECT:
            raise UvCannot(f"uv has no counterpart of pip's setting {name}")
    certificates = settings.get("cert") or environ.get("REQUESTS_CA_BUNDLE") or environ.get("CURL_CA_BUNDLE")
    if certificates:
        handover.arguments.extend(("--cert", certificates))
    elif pip_version >= PIP_TRUSTS_THE_SYSTEM_SINCE:
        handover.arguments.append("--system-certs")
    return handover


def existing_links(links: Sequence[str]) -> list[str]:
    """Addresses and folders. pip passes over a folder that does not exist; uv would fail."""
    taken = []
    for link in links:
        if "," in link:
            raise UvCannot("uv takes no comma in pip's setting find-links")
        if "://" in link or link.startswith("file:"):
            taken.append(link)
        elif Path(link).expanduser().exists():
            taken.append(str(Path(link).expanduser()))
    return taken


def whole_number(name: str, value: str) -> str:
    try:
        return str(math.ceil(float(value)))
    except (ValueError, OverflowError):
        raise UvCannot(f"pip's setting {name} is no number") from None


def boolean(name: str, value: str) -> bool:
    if value.lower() not in BOOLEANS:
        raise UvCannot(f"pip's setting {name} is neither true nor false")
    return BOOLEANS[value.lower()]


COUNTERPARTS: Mapping[str, Callable[[str], Mapping[str, str]]] = {
    "index-url": lambda value: {"UV_INDEX_URL": value},
    # pip takes the best of all indexes; uv by itself the first that knows the name.
    "extra-index-url": lambda value: {
        "UV_EXTRA_INDEX_URL": " ".join(value.split()),
        "UV_INDEX_STRATEGY": "unsafe-best-match",
    },
    "find-links": lambda value: {"UV_FIND_LINKS": ",".join(existing_links(value.split()))},
    "trusted-host": lambda value: {"UV_INSECURE_HOST": " ".join(value.split())},
    "client-cert": lambda value: {"SSL_CLIENT_CERT": value},
    "proxy": lambda value: dict.fromkeys(PROXY_VARIABLES, value),
    "timeout": lambda value: {"UV_HTTP_TIMEOUT": whole_number("timeout", value)},
    "retries": lambda value: {"UV_HTTP_RETRIES": whole_number("retries", value)},
}
FLAGS = {"no-index": "--no-index", "no-cache-dir": "--no-cache"}


def version(text: str) -> tuple[int, ...]:
    return tuple(int(number) for number in re.findall(r"\d+", text)[:2])


def run_quietly(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """Return what the command printed.

    Raises:
        UvCannot: it cannot be started, or it failed; with what it said.
    """
    try:
        done = subprocess.run(command, env=dict(environment), capture_output=True, text=True, check=False)
    except OSError as error:
        raise UvCannot(str(error)) from None
    if done.returncode != 0:
        raise UvCannot(done.stderr.strip() or f"{Path(command[0]).name} ended with {done.returncode}")
    return done.stdout


def one_line(text: str) -> str:
    """Without line breaks, and of each address the host alone: names, passwords and tokens stand before and after."""
    text = re.sub(r"([a-z][a-z0-9+.-]{0,20}://)(?:\S*@)?([^\s/?#'\"`)]*)\S*", r"\1\2", text, flags=re.IGNORECASE)
    text = " ".join(text.split())
    return text if len(text) <= REASON_CHARACTERS_MAX else text[:REASON_CHARACTERS_MAX] + " …"


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:
        sys.exit(130)
