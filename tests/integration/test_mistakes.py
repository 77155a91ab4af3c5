"""What an operator gets wrong, made really on a cluster as operators have it, and what `tidegate check` says: one
message, the key at fault, what to do.

Three brokers with an authorizer and an S3 server are shared; everything else is a socket, a file or a limit of this
process. The configuration is right but for the mistake.
"""

import json
import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from metrics.troubles import TroubleId
from storage.config import ConfigError
from tests.support.mistakes import BUCKET, NEVER_READY, WARNING, Mistake, Stage, right_stage
from tests.support.mistakes_elsewhere import ELSEWHERE
from tests.support.mistakes_here import HERE
from tests.support.s3_server import S3Server
from tests.support.secured_kafka import DESCRIBE_CONFIGS, METADATA_TOPIC, SecuredKafka
from tests.support.serving import Serving, serving
from tests.support.told_troubles import assert_in_every_place, wait_troubles
from tests.support.versitygw import versitygw
from tests.support.waiting import WAIT_S_MAX, wait_until
from tidegate import exit_codes

pytestmark = [pytest.mark.integration, pytest.mark.needs("java", "kafka", "versitygw")]

AT_ONCE = 6
ID = "  # "
"""Between what `check` says and the id of the trouble."""
MISTAKES = [*HERE, *ELSEWHERE]


@pytest.fixture(scope="module")
def s3(tmp_path_factory: pytest.TempPathFactory) -> Iterator[S3Server]:
    folder = tmp_path_factory.mktemp("store")
    with versitygw(folder, tmp_path_factory.mktemp("versitygw")) as server:
        server.make_bucket(BUCKET)
        yield server


@pytest.fixture(autouse=True)
def nobodys_credentials(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("HOME", str(tmp_path))


@pytest.fixture(scope="module")
def cluster(operators: SecuredKafka) -> Iterator[SecuredKafka]:
    """Tidegate's user may see the retention, too."""
    operators.allow("tidegate", DESCRIBE_CONFIGS, METADATA_TOPIC)
    yield operators
    operators.withdraw("tidegate", DESCRIBE_CONFIGS, METADATA_TOPIC)


def test_a_right_configuration_is_not_complained_of(cluster: SecuredKafka, s3: S3Server, tmp_path: Path) -> None:
    """Nor are ports of a Tidegate that runs here."""
    with right_stage(cluster, s3, tmp_path) as right:
        assert right.check() == (exit_codes.DONE, [], [])
        with serving(tmp_path, right.properties) as serve:
            serve.wait_log("ready: ")
            assert right.check() == (exit_codes.DONE, [], [])


def test_a_mistake_has_one_message_that_says_what_to_do(cluster: SecuredKafka, s3: S3Server, tmp_path: Path) -> None:
    assert len(MISTAKES) >= 60
    otherwise = []
    for each in [each for each in MISTAKES if not each.needs]:
        (tmp_path / each.name).mkdir()
        with right_stage(cluster, s3, tmp_path / each.name) as stage:
            each.make(stage)
            code, wrong, warned = stage.check()
        messages = wrong if each.code != WARNING else wrong + warned
        is_known = each.is_refused or each.only_check or any(ID in message for message in messages)
        if (
            (len(messages), code) != (1, each.code)
            or not is_known
            or not all(words in messages[0] for words in each.said)
        ):
            otherwise.append(f"{each.name}: exit code {code}, {messages}")
    assert not otherwise, "\n".join(otherwise)


def test_serve_refuses_what_check_refuses(cluster: SecuredKafka, s3: S3Server, tmp_path: Path) -> None:
    """FILE can be read, which all commands do alike, and what it names is refused, or cannot be had."""
    started = []
    with ExitStack() as stack:
        for each in [each for each in MISTAKES if each.is_refused]:
            (tmp_path / each.name).mkdir()
            stage = stack.enter_context(right_stage(cluster, s3, tmp_path / each.name))
            each.make(stage)
            with suppress(ConfigError):
                stage.load()
                started.append((each, stack.enter_context(stage.serve())))
        for each, serve in started:
            assert serve.process.wait(WAIT_S_MAX) == each.code, serve.log()
            assert any(words in serve.log() for words in each.said), (each.name, serve.log())
    assert len(started) >= 11


def test_a_running_serve_says_what_check_says_in_every_place(
    cluster: SecuredKafka, s3: S3Server, tmp_path: Path
) -> None:
    """Failed before: of no broker, the store and a catalog that is too small it did not say which keys to look at, and
    for a controller's port, a wrong prefix and an endpoint that is no store the two had different ids, or one none."""
    running = [each for each in MISTAKES if not each.is_refused and not each.only_check and not each.needs]
    assert len(running) >= 45
    assert_told_alike(running, cluster, s3, tmp_path)


@pytest.mark.needs("tmpfs")
def test_a_full_disk_is_told_in_every_place(cluster: SecuredKafka, s3: S3Server, tmp_path: Path) -> None:
    assert_told_alike([each for each in MISTAKES if each.needs == "tmpfs"], cluster, s3, tmp_path)


def assert_told_alike(mistakes: Sequence[Mistake], cluster: SecuredKafka, s3: S3Server, folder: Path) -> None:
    otherwise: list[str] = []
    for first in range(0, len(mistakes), AT_ONCE):
        with ExitStack() as stack:
            begun = []
            for each in mistakes[first : first + AT_ONCE]:
                (folder / each.name).mkdir()
                stage = stack.enter_context(right_stage(cluster, s3, folder / each.name))
                each.make(stage)
                _, wrong, warned = stage.check()
                begun.append((each, stage, wrong + warned, stack.enter_context(stage.serve())))
            for each, stage, lines, serve in begun:
                try:
                    tells_alike(each, stage, lines, serve)
                except AssertionError as error:
                    otherwise.append(f"{each.name}: {error}; check: {lines}")
    assert not otherwise, "\n\n".join(otherwise)


def tells_alike(made: Mistake, stage: Stage, lines: Sequence[str], serve: Serving) -> None:
    """Every place tells of what `check` has told, and of nothing else."""
    if made.shown_by is not None:
        made.shown_by(stage, serve)
    ids = {TroubleId(each) for line in lines for each in line.partition(ID)[2:] if each}
    wait_troubles(serve, {*ids, *made.follows})
    (its_own,) = [each for line in lines if made.said[0] in line for each in line.partition(ID)[2:] if each]
    assert_in_every_place(serve, TroubleId(its_own), made.said)
    is_ready = not NEVER_READY & {*ids, *made.follows}
    wait_until(lambda: json.loads(serve.page("/readyz")[1])["ready"] is is_ready, f"ready: {is_ready}")
