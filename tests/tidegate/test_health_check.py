"""The image's health check finds the admin listener wherever the configuration puts it."""

import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
import yaml

from tests.support.compose import docker_instructions
from tests.support.for_each import for_each
from tests.support.needs import ROOT
from tidegate.health_check import admin_address, main


class Live(BaseHTTPRequestHandler):
    status = 200

    def do_GET(self) -> None:
        self.send_response(self.status if self.path == "/livez" else 404)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Nothing on standard error."""


@pytest.fixture
def port() -> Iterator[int]:
    with HTTPServer(("127.0.0.1", 0), Live) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield server.server_port
        server.shutdown()
        thread.join()


def written(folder: Path, *lines: str) -> Path:
    path = folder / "tidegate.properties"
    path.write_text("\n".join(lines))
    return path


@for_each(
    "lines, environ, address",
    [
        ([], {}, "127.0.0.1:9464"),
        (["admin.listen=0.0.0.0:9999"], {}, "127.0.0.1:9999"),
        (["admin.listen=[::]:9999"], {}, "[::1]:9999"),
        (["admin.listen=10.0.0.7:9999"], {}, "10.0.0.7:9999"),
        (["admin.listen=0.0.0.0:9999"], {"TIDEGATE_ADMIN_LISTEN": "0.0.0.0:1"}, "127.0.0.1:1"),
        (["admin.listen=0.0.0.0:9999", "no.such.key=1", "cache.disk.bytes=many"], {}, "127.0.0.1:9999"),
    ],
)
def test_the_address_is_the_configurations(
    lines: list[str], environ: dict[str, str], address: str, tmp_path: Path
) -> None:
    assert str(admin_address(written(tmp_path, *lines), environ)) == address


def test_a_loop_that_turns_is_healthy(port: int, tmp_path: Path) -> None:
    assert main(written(tmp_path, f"admin.listen=0.0.0.0:{port}"), {}) == 0


def test_another_answer_is_not(port: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Live, "status", 500)
    assert main(written(tmp_path, f"admin.listen=0.0.0.0:{port}"), {}) == 1


def test_silence_names_address_and_key(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = written(tmp_path, "admin.listen=127.0.0.1:1")
    assert main(path, {}) == 1
    assert capsys.readouterr().out.startswith("127.0.0.1:1/livez: ")


def test_the_image_asks_for_the_file_that_it_serves() -> None:
    instructions = dict(docker_instructions(ROOT / "deploy" / "Dockerfile"))
    command = yaml.safe_load(instructions["HEALTHCHECK"].partition("CMD ")[2])
    assert command[:-1] == ["tidegate", "health"]
    assert command[-1] == yaml.safe_load(instructions["CMD"])[-1]


def test_a_file_that_cannot_be_read_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Failed before, with a traceback."""
    for path, why in ((tmp_path / "absent.properties", "No such file or directory"), (tmp_path, "Is a directory")):
        assert main(path, {}) == 1
        assert capsys.readouterr().out == f"{path}: cannot be read: {why}\n"
