"""What every test gets: house rules for skips, hypothesis profiles, and the fixtures that cost seconds to make.

Fixtures of the session: `kafka` (a running cluster), `tiered` (a topic on it that is mostly in the tier), `plain_kafka`
(a cluster without remote storage), `oracle` (Kafka's own classes), `s3_endpoint` (an S3 server), `toxics` (toxiproxy,
for bad ways to it), `vectors` (bytes that others wrote). Using one is enough to be marked `integration` or with what it
needs.
"""

import hashlib
import inspect
import logging
import os
import resource
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import pytest
import structlog
import trio
from hypothesis import HealthCheck, settings
from trio.testing import MockClock

from pipeline.session import missing_packages
from tests.support import needs
from tests.support.costs import Costs
from tests.support.kafka import TieredTopic, own_cluster, tiered_topic
from tests.support.meter_owner import guard_meters
from tests.support.oracle import Oracle
from tests.support.plain_kafka import own_plain_cluster
from tests.support.s3_server import S3Server, s3_server
from tests.support.secured_kafka import SecuredKafka, secured_kafka
from tests.support.suites import QUICK_NEEDS, Suite, is_left_out, is_out_of_place
from tests.support.tidegate import RunningTidegate, own_tidegate
from tests.support.toxiproxy import Toxiproxy, toxiproxy
from tests.support.worker_groups import finish_group, group_by_worker, shared_fixtures
from tidegate.logs import OUR_PACKAGES
from tools.demo.kafka_cluster import KafkaCluster

OPEN_FILES_WANTED = 8192

ID_PART_CHARACTERS_MAX = 80
"""A value that is longer is named in its test's id by how it begins, its length and a digest."""

# Deadlines are off, and the check for slow drawing: on a shared machine they find slow neighbours, not slow code.
_AT_ANY_SPEED: Final[Mapping[str, Any]] = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}
settings.register_profile("quick", max_examples=15, derandomize=True, **_AT_ANY_SPEED)
settings.register_profile("fast", max_examples=50, derandomize=True, **_AT_ANY_SPEED)
settings.register_profile("deep", max_examples=10_000, print_blob=True, **_AT_ANY_SPEED)

_NEEDS_OF_FIXTURE = {
    "kafka": ("java", "kafka"),
    "oracle": ("java", "kafka"),
    "plain_kafka": ("java", "kafka"),
    "spark": ("spark",),
    "spark_cluster": ("spark",),
    "spark_files": ("spark",),
    "spark_topics": ("java", "kafka"),
    "toxics": ("toxiproxy",),
    "vectors": ("vectors",),
}
_FOLDERS_WITH_THE_EXTRA = tuple(Path(__file__).with_name(name) for name in ("pipeline", "spark", "table"))
"""Test modules here cannot even be imported without pyspark and pyarrow."""
_lacking: dict[str, str] = {}
"""What was not run for want of something, and the kind that lacked."""


@pytest.fixture(scope="session")
def kafka() -> Iterator[KafkaCluster]:
    """One broker for all tests; take a topic of your own with `fresh_name`."""
    with own_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def plain_kafka() -> Iterator[KafkaCluster]:
    """One broker without remote storage for all tests of standalone mode; topics are a test's own, as with `kafka`."""
    with own_plain_cluster() as cluster:
        yield cluster


@pytest.fixture(scope="session")
def tiered(kafka: KafkaCluster) -> TieredTopic:
    """Two partitions, each with two or three segments in the tier alone and one in the broker; nobody adds to it.

    Batches are bounded, since on a busy machine a producer's first one fills a segment.
    """
    return tiered_topic(kafka, "tiered-shared", partitions=2, batch_size=128 * 1024)


@pytest.fixture(scope="session")
def tidegate(kafka: KafkaCluster, tiered: TieredTopic) -> Iterator[RunningTidegate]:
    """One Tidegate before the shared broker, which asks the broker again for every tier read."""
    with own_tidegate(kafka, {"authority.max.age.ms": "0"}) as running:
        yield running


@pytest.fixture(scope="session")
def guarded() -> Iterator[SecuredKafka]:
    """One broker that asks everyone who they are; a test takes back the rights that it gave."""
    with secured_kafka() as started:
        yield started


@pytest.fixture(scope="session")
def s3_endpoint() -> Iterator[S3Server]:
    """One S3 server for all tests; make a bucket of your own."""
    with s3_server() as server:
        yield server


@pytest.fixture(scope="session")
def toxics() -> Iterator[Toxiproxy]:
    with toxiproxy() as started:
        yield started


@pytest.fixture(scope="session")
def oracle() -> Iterator[Oracle]:
    started = Oracle()
    yield started
    started.close()


@pytest.fixture(scope="session")
def vectors() -> Path:
    return needs.vectors_dir()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--suite", type=Suite, choices=list(Suite), help="what a make target runs (suites.py)")


def pytest_configure(config: pytest.Config) -> None:
    profile = "quick" if config.getoption("--suite") is Suite.QUICK else "fast"
    # Where `drawn` finds it, in this process and in those that it starts.
    settings.load_profile(os.environ.setdefault("TIDEGATE_HYPOTHESIS_PROFILE", profile))
    if config.getoption("--suite"):
        config.pluginmanager.register(Costs())
    _allow_open_files()
    guard_meters()


def _allow_open_files() -> None:
    """Tests with a thousand connections open more files than many a shell allows."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(OPEN_FILES_WANTED, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def pytest_make_parametrize_id(val: object) -> str | None:
    """pytest makes ids of whole values, and some of ours are megabytes. None: pytest's own choice."""
    if not isinstance(val, bytes | str) or len(val) <= ID_PART_CHARACTERS_MAX // (4 if isinstance(val, bytes) else 1):
        return None
    content = val if isinstance(val, bytes) else val.encode("utf-8", "surrogatepass")
    begins = ascii(val[:8])[2:-1] if isinstance(val, bytes) else val[:32].encode("unicode_escape").decode("ascii")
    return f"{begins}~{len(val)}~{hashlib.sha256(content).hexdigest()[:8]}"


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """None: pytest's own rules."""
    return is_left_out(collection_path, config.getoption("--suite"), config.args) or None


class _LackingModule(pytest.File):
    def collect(self) -> Iterator[pytest.Item]:
        pytest.skip(needs.kind("spark").reason)


@pytest.hookimpl(tryfirst=True)
def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> _LackingModule | None:
    if missing_packages() and any(module_path.is_relative_to(folder) for folder in _FOLDERS_WITH_THE_EXTRA):
        return _LackingModule.from_parent(parent, path=module_path)
    return None


# First, since pytest-xdist's own hook looks for the groups; pytest-randomly's has shuffled before any.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    for item in items:
        names = shared_fixtures(item)
        for fixture, kinds in _NEEDS_OF_FIXTURE.items():
            if fixture in names:
                item.add_marker(pytest.mark.needs(*kinds))
        if item.get_closest_marker("autojump") and inspect.iscoroutinefunction(getattr(item, "obj", None)):
            item.add_marker(pytest.mark.trio(run=_on_autojump_clock), append=False)
        if any(name in names for name in ("kafka", "plain_kafka", "spark_topics")):
            item.add_marker(pytest.mark.integration)
        unknown = [name for name in _needed(item) if not needs.is_kind(name)]
        if unknown:
            raise pytest.UsageError(f"{item.nodeid} needs {unknown}; tests/support/needs.py has no such kind")
    _leave_out(items, config)
    if hasattr(config, "workerinput"):
        group_by_worker(items, {item: _needed(item) for item in items})


def pytest_runtest_setup(item: pytest.Item) -> None:
    _forget_logging()
    for name in _needed(item):
        if not needs.kind(name).is_present():
            pytest.skip(needs.kind(name).reason)


@pytest.hookimpl(trylast=True)
def pytest_runtest_teardown(item: pytest.Item, nextitem: pytest.Item | None) -> None:
    if hasattr(item.config, "workerinput"):
        finish_group(item, nextitem)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: "pytest.CallInfo[None]"
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if report.skipped and not hasattr(report, "wasxfail") and call.excinfo is not None:
        _judge_skip(report, item.nodeid, str(call.excinfo.value))
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    report = yield
    if report.skipped and isinstance(report.longrepr, tuple):
        _judge_skip(report, collector.nodeid, report.longrepr[2].removeprefix("Skipped: "))
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    """A worker of pytest-xdist hands over what it counted: the summary is the controller's."""
    output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
    if output is not None:
        output["lacking"] = dict(_lacking)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: object) -> None:
    """Files are collected by every worker, so all report what lacked there, and it is counted once."""
    _lacking.update(getattr(node, "workeroutput", {}).get("lacking", {}))


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _lacking:
        terminalreporter.section("not run for want of something", sep="-")
        for name, count in sorted(Counter(_lacking.values()).items()):
            terminalreporter.line(f"{name}: {count} not run; {needs.kind(name).how}")


def _on_autojump_clock(
    function: Callable[[], Awaitable[object]],
    *,
    clock: trio.abc.Clock | None,
    instruments: Sequence[trio.abc.Instrument],
) -> object:
    """A test marked `autojump` runs by this instead of by `trio.run`; its `mock_clock`, if it has one, is the clock."""
    clock = clock if isinstance(clock, MockClock) else MockClock()
    clock.autojump_threshold = 0
    return trio.run(function, clock=clock, instruments=instruments)


def _forget_logging() -> None:
    """A program that an earlier test ran in this process has set the levels of all loggers."""
    structlog.reset_defaults()
    logging.getLogger().setLevel(logging.WARNING)
    for package in OUR_PACKAGES:
        logging.getLogger(package).setLevel(logging.NOTSET)


def _leave_out(items: list[pytest.Item], config: pytest.Config) -> None:
    """Take out what another suite runs, and what this machine may lack the means for, which the summary counts.

    Raises:
        pytest.UsageError: a quick test needs more than `make demo` brings.
    """
    suite: Suite | None = config.getoption("--suite")
    left_out = [item for item in items if is_out_of_place(item, suite)]
    for item in items:
        excused = [name for name in _needed(item) if needs.kind(name).is_excused]
        if excused:
            left_out.append(item)
            _lacking[item.nodeid] = excused[0]
        if suite is Suite.QUICK and not QUICK_NEEDS.issuperset(_needed(item)):
            raise pytest.UsageError(f"{item.nodeid} needs {_needed(item)}: its place is a folder named `all`")
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in set(left_out)]


def _judge_skip(report: pytest.TestReport | pytest.CollectReport, what: str, reason: str) -> None:
    """Count a skip under its kind; where all is required it is a failure, as it would hide a test that never runs."""
    kind = needs.kind_of_skip(reason)
    if kind is not None:
        _lacking[what] = kind.name
    if needs.requires_all():
        report.outcome = "failed"
        report.longrepr = f"{what} was skipped under TIDEGATE_REQUIRE_ALL: {reason}"


def _needed(item: pytest.Item) -> list[str]:
    """Kinds of the item's needs marks, each once, in the order they were written."""
    return list(dict.fromkeys(name for mark in item.iter_markers("needs") for name in mark.args))
