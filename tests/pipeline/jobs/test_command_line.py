"""`tidegate spark` without a Spark: exit codes, what is printed where, and what is imported when."""

import signal
import subprocess
import sys
import threading
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace

import pytest

from pipeline.jobs import audit_command, command_line
from pipeline.jobs.command_line import main
from pipeline.session import SessionError
from tests.support.for_each import for_each
from tests.support.tier_config_files import tier_file


@contextmanager
def no_session(arguments: Namespace) -> Iterator[None]:
    if arguments.job:
        raise SessionError("Java 17 or 21 is needed")
    yield


@pytest.fixture(autouse=True)
def logs_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process has one configuration of logs, and it would outlive this test's standard error."""
    monkeypatch.setattr("table.logs.configure_logs", lambda: None)


@pytest.fixture
def config(tmp_path: Path) -> str:
    storage = f"rsm.config.storage.root={tmp_path}\n"
    return str(tier_file(tmp_path, storage))


def test_help_imports_no_spark_and_no_arrow() -> None:
    """Given a new process, when it is asked for help, then it answers without what takes seconds to import."""
    code = (
        "import sys\n"
        "from pipeline.jobs.command_line import main\n"
        "try:\n    main(['audit', '--help'])\n"
        "except SystemExit as ended:\n    assert ended.code == 0\n"
        "print({'pyspark', 'pyarrow', 'numpy', 'boto3'} & sys.modules.keys())"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.splitlines()[-1] == "set()"


def test_every_problem_of_the_configuration_is_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tier_file(tmp_path, "an.unknown.key=1\nno.such.key=1\n")
    assert main(["audit", "--config", str(file)]) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) >= 2
    assert all(line.startswith("tidegate: ") for line in lines)


def test_options_are_looked_at_before_spark_is_started(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command_line, "_session", no_session)
    wanted = ["backfill", "--config", config, "--topic", "a", "--output", "o"]
    assert main([*wanted, "--source", "kafka"]) == 2
    assert "--bootstrap is missing" in capsys.readouterr().err
    assert main([*wanted, "--to", "later"]) == 2
    assert "--to is 'later'" in capsys.readouterr().err
    # And no Spark is a sentence.
    assert main(["audit", "--config", config]) == 2
    assert capsys.readouterr().err == "tidegate: Java 17 or 21 is needed\n"


def test_without_the_extra_it_says_what_to_install(
    config: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("pipeline.session.PACKAGES", ("no_such_package",))
    assert main(["audit", "--config", config]) == 2
    assert "pip install 'tidegate[spark]'" in capsys.readouterr().err


@pytest.fixture
def listens_to_interrupts() -> Iterator[None]:
    """Their starter may have the tests ignore them, as `nohup` and shells do for what runs in the background."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("listens_to_interrupts")
@for_each("number, code", [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_ends_it_with_its_own_code(
    number: signal.Signals, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def send(_arguments: Namespace) -> None:
        signal.raise_signal(number)  # in this thread: another one's would leave it waiting

    before = signal.getsignal(number)
    monkeypatch.setattr(audit_command, "prepare", send)
    assert main(["audit", "--config", "f"]) == code
    assert "the same command goes on" in capsys.readouterr().err
    assert signal.getsignal(number) is before


def test_ctrl_c_before_the_main_thread_waits_cancels_sparks_jobs(config: str, monkeypatch: pytest.MonkeyPatch) -> None:
    running, cancelled = threading.Event(), threading.Event()

    @contextmanager
    def session(_arguments: Namespace) -> Iterator[SimpleNamespace]:
        yield SimpleNamespace(sparkContext=SimpleNamespace(cancelAllJobs=cancelled.set))

    def job(_context: object) -> int:
        running.set()
        assert cancelled.wait(60)
        return 0

    def start(thread: threading.Thread) -> None:
        begin(thread)
        assert running.wait(60)
        raise KeyboardInterrupt

    monkeypatch.setattr(command_line, "_session", session)
    monkeypatch.setattr("pipeline.session.register", lambda _spark: None)
    monkeypatch.setattr(audit_command, "prepare", lambda _arguments: job)
    begin = threading.Thread.start
    monkeypatch.setattr(threading.Thread, "start", start)
    assert main(["audit", "--config", config]) == 130
    assert cancelled.is_set()
