"""uv installs what pip would, from where pip would; where it cannot, pip does."""

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest

from tests.support.needs import ROOT
from tools import install_packages
from tools.install_packages import UvCannot, handed_over, one_line, pip_settings

OLD_PIP, NEW_PIP = (23, 2), (24, 2)

HANDED = [
    ("global.index-url='https://u:p@m/simple'", [], {"UV_INDEX_URL": "https://u:p@m/simple"}),
    (":env:.pypi-url='https://m/simple'", [], {"UV_INDEX_URL": "https://m/simple"}),
    (
        r"install.extra-index-url='\nhttps://a/s\nhttps://b/s'",
        [],
        {"UV_EXTRA_INDEX_URL": "https://a/s https://b/s", "UV_INDEX_STRATEGY": "unsafe-best-match"},
    ),
    ("global.no-index='true'", ["--no-index"], {}),
    ("global.no-index='0'", [], {}),
    (":env:.no-cache-dir='1'", ["--no-cache"], {}),
    (f"global.find-links='/nowhere {ROOT} https://m/l'", [], {"UV_FIND_LINKS": f"{ROOT},https://m/l"}),
    ("global.cert='/ca.pem'", ["--cert", "/ca.pem"], {}),
    ("global.client-cert='/me.pem'", [], {"SSL_CLIENT_CERT": "/me.pem"}),
    ("global.proxy='http://p:1'", [], dict.fromkeys(install_packages.PROXY_VARIABLES, "http://p:1")),
    (r"global.trusted-host='a\nb:8443'", [], {"UV_INSECURE_HOST": "a b:8443"}),
    (":env:.default-timeout='1.5'", [], {"UV_HTTP_TIMEOUT": "2"}),
    ("global.retries='7'", [], {"UV_HTTP_RETRIES": "7"}),
    # The environment wins over the command's section, and that over the one for all commands; what is empty is not set.
    ("install.timeout='2'\nglobal.timeout='1'\n:env:.index-url=''", [], {"UV_HTTP_TIMEOUT": "2"}),
    (":env:.timeout='3'\ninstall.default-timeout='2'", [], {"UV_HTTP_TIMEOUT": "3"}),
    ("global.retries='7'\nglobal.retries='7'", [], {"UV_HTTP_RETRIES": "7"}),
    # Other commands' settings, and those that change nothing about what is installed.
    ("download.platform='x'\nglobal.quiet='1'\nglobal.disable-pip-version-check='1'", [], {}),
]

NOT_HANDED = {
    "global.constraint='/c.txt'": "uv has no counterpart of pip's setting constraint",
    "install.platform='x'": "uv has no counterpart of pip's setting platform",
    ":env:.keyring-provider='subprocess'": "uv has no counterpart of pip's setting keyring-provider",
    "global.unheard-of='1'": "uv has no counterpart of pip's setting unheard-of",
    "global.index-url='https://a'\nglobal.index-url='https://b'": "pip's setting global.index-url is given twice",
    "global.index-url=https://secret": "pip's setting global.index-url is not understood",
    "global.find-links='https://m/a,b'": "uv takes no comma in pip's setting find-links",
    "global.timeout='long'": "pip's setting timeout is no number",
    "global.no-index='perhaps'": "pip's setting no-index is neither true nor false",
}


def test_pips_settings_are_handed_to_uv() -> None:
    for listing, arguments, environment in HANDED:
        handover = handed_over(pip_settings(listing), {}, OLD_PIP)
        assert (handover.arguments, handover.environment) == (arguments, environment), listing


def test_what_uv_has_no_counterpart_for_is_said() -> None:
    for listing, reason in NOT_HANDED.items():
        with pytest.raises(UvCannot) as caught:
            handed_over(pip_settings(listing), {}, OLD_PIP)
        assert str(caught.value) == reason


def test_certificates_are_those_that_pip_would_trust() -> None:
    requests = {"CURL_CA_BUNDLE": "/curl", "REQUESTS_CA_BUNDLE": "/requests"}
    assert handed_over({"cert": "/own"}, requests, NEW_PIP).arguments == ["--cert", "/own"]
    assert handed_over({}, requests, NEW_PIP).arguments == ["--cert", "/requests"]
    assert handed_over({}, {"CURL_CA_BUNDLE": "/curl"}, NEW_PIP).arguments == ["--cert", "/curl"]
    assert handed_over({}, {}, NEW_PIP).arguments == ["--system-certs"]


def test_a_reason_is_one_line_without_secrets() -> None:
    said = "error: Failed to fetch: `https://me:pa/ss@m.example:81/token/simple/a?key=k`\n  Caused by: 401\n"
    assert one_line(said) == "error: Failed to fetch: `https://m.example:81 Caused by: 401"
    assert len(one_line("x" * 10_000)) < 300


class Machine:
    """What `main` starts. `fails` are words of commands that fail, with what they say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, uv: str, fails: Mapping[str, str]) -> None:
        self.commands: list[str] = []
        self.fails = fails
        for name in ("REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE"):
            monkeypatch.delenv(name, raising=False)
        versions = {"uv": uv, "pip": "23.2.1"}
        monkeypatch.setattr(
            install_packages, "importlib", SimpleNamespace(metadata=SimpleNamespace(version=versions.get))
        )
        monkeypatch.setattr(subprocess, "run", self.run)

    def run(self, command: Sequence[str], **options: object) -> object:
        text = " ".join([Path(command[0]).name, *command[1:]])
        text = text.replace(f"{Path(sys.executable).name} -m ", "").replace(f" --python {sys.executable}", "")
        self.commands.append(text.replace(str(install_packages.UV_LOCK), "uv.txt"))
        said = [stderr for word, stderr in self.fails.items() if word in text]
        listing = "global.retries='1'\n" if "config" in command else ""
        return SimpleNamespace(returncode=len(said), stdout=listing, stderr="".join(said))


PIP = "pip install --quiet --disable-pip-version-check"
UV = "uv pip install --quiet"
INSTALL_UV = f"{PIP} --require-hashes --no-compile --only-binary :all: -r uv.txt"
LOCKED_UV = install_packages.UV_LOCK.read_text("utf-8").split()[0].removeprefix("uv==")


@pytest.mark.parametrize(
    ("uv", "fails", "commands", "reason"),
    [
        (LOCKED_UV, {}, ["pip config list", f"{UV} -r a", f"{UV} -e ."], ""),
        ("0.1", {}, [INSTALL_UV, "pip config list", f"{UV} -r a", f"{UV} -e ."], ""),
        ("0.1", {"uv.txt": "ERROR: no uv"}, [INSTALL_UV, f"{PIP} -r a", f"{PIP} -e ."], "ERROR: no uv"),
        (LOCKED_UV, {"uv pip": "× 401"}, ["pip config list", f"{UV} -r a", f"{PIP} -r a", f"{PIP} -e ."], "× 401"),
        (LOCKED_UV, {"-e .": "no"}, ["pip config list", f"{UV} -r a", f"{UV} -e .", f"{PIP} -e ."], "no"),
        (LOCKED_UV, {"config": "?"}, ["pip config list", f"{PIP} -r a", f"{PIP} -e ."], "?"),
        (LOCKED_UV, {"-r a": "bad"}, ["pip config list", f"{UV} -r a", f"{PIP} -r a"], "bad"),
    ],
)
def test_pip_installs_what_uv_does_not(
    uv: str,
    fails: dict[str, str],
    commands: list[str],
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    machine = Machine(monkeypatch, uv=uv, fails=fails)
    assert install_packages.main(["-r", "a", "--", "-e", "."]) == int(any(word in commands[-1] for word in fails))
    assert machine.commands == commands
    assert capfd.readouterr().err == (f"setup: pip installs, which takes longer: {reason}\n" if reason else "")
