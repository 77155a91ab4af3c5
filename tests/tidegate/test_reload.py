"""Reading the configuration again: what changed, what waits for a restart, and what a wrong file does not do."""

import ssl
from pathlib import Path
from typing import Any

import pytest
import structlog
import trio
from trio.testing import MockClock

from metrics.meters import Meters, ReloadOutcome
from metrics.registry import Registry
from proxy.readiness import Readiness
from storage.config.keys import Reload
from tests.support.certificates import server_certificate
from tests.support.config_files import load_lines
from tests.support.tier_config_files import tier_file
from tests.support.waiting import settled
from tidegate.certificate_dates import expires_at_s
from tidegate.config import Config, load
from tidegate.reload import WATCH_INTERVAL_S, Cause, Change, Reloader, changes

CERTIFICATE, KEY = "proxy.tls.certificate.file", "proxy.tls.key.file"


class World:
    """A file, a reloader over it, and what the process was made to follow."""

    def __init__(self, folder: Path, lines: str = "") -> None:
        self.folder = folder
        self.registry = Registry()
        self.followed: list[Config] = []
        self.refusal: Exception | None = None
        self.logs: Any = ()
        self.file = tier_file(folder, lines)
        self.readiness = Readiness(logs=False)
        self.reloader = Reloader(load(self.file, {}), self._load, self._follow, Meters(self.registry), self.readiness)

    def write(self, lines: str) -> None:
        tier_file(self.folder, lines)

    async def reload(self, lines: str | None = None) -> ReloadOutcome:
        if lines is not None:
            self.write(lines)
        with structlog.testing.capture_logs() as self.logs:
            return await self.reloader.reload(Cause.SIGNAL)

    @property
    def troubles(self) -> list[str]:
        return [each["id"] for each in self.readiness.troubles if each["id"] != "starting"]

    def said(self, event: str, *fields: str) -> list[tuple[object, ...]]:
        return [tuple(entry[field] for field in fields) for entry in self.logs if entry["event"] == event]

    @property
    def waiting(self) -> float | None:
        return self.registry.sample_value("tidegate_config_restart_needed", {})

    def counted(self, outcome: ReloadOutcome) -> float | None:
        return self.registry.sample_value("tidegate_config_reloads_total", {"outcome": outcome.value})

    def _load(self) -> Config:
        return load(self.file, {})

    def _follow(self, config: Config) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.followed.append(config)


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


async def test_what_can_change_is_followed_and_shown_old_and_new(tmp_path: Path) -> None:
    world = World(tmp_path, "proxy.connections.max=5\n")
    outcome = await world.reload(
        "proxy.connections.max=6\nproxy.frame.request.bytes.max=1 MiB\nexpert.tier.linger.ms=20\n"
    )
    assert outcome is ReloadOutcome.OK
    assert world.said("config_changed", "key", "old", "new", "effect") == [
        ("proxy.connections.max", "5", "6", "at once"),
        ("proxy.frame.request.bytes.max", "100 MiB", "1 MiB", "new connections"),
    ]
    assert world.said("config_restart_needed") == []
    assert [config.proxy.connections_max for config in world.followed] == [6]
    assert (world.waiting, world.counted(ReloadOutcome.OK)) == (0, 1)


async def test_what_cannot_change_waits_until_it_is_taken_back(world: World) -> None:
    assert await world.reload("memory.max.bytes=2 GiB\nrsm.config.key.prefix=a/\n") is ReloadOutcome.OK
    keys = [key for (key,) in world.said("config_restart_needed", "key")]
    assert world.troubles == ["restart_needed"] * len(keys)
    # The budgets that derive from it are other ones too.
    assert keys == [
        "memory.max.bytes",
        "expert.proxy.held.bytes.max",
        "expert.tier.inflight.bytes.max",
        "cache.memory.bytes",
        "expert.readahead.total.max.bytes",
        "rsm.config.key.prefix",
    ]
    assert world.said("config_changed") == []
    assert world.waiting == len(keys)
    assert await world.reload() is ReloadOutcome.UNCHANGED
    assert world.waiting == len(keys)
    assert await world.reload("") is ReloadOutcome.OK
    assert world.waiting == 0


async def test_every_problem_of_a_wrong_file_is_a_line_and_nothing_changes(world: World) -> None:
    outcome = await world.reload("log.level=loud\nproxy.connections.max=0\nproxy.conections.max=5\n")
    assert outcome is ReloadOutcome.REFUSED
    problems = [str(problem) for (problem,) in world.said("config_problem", "problem")]
    assert len(problems) == 3
    assert any("log.level = loud" in problem for problem in problems)
    assert world.troubles == ["config_refused"] * 3
    assert any("nearest is proxy.connections.max" in problem for problem in problems)
    assert world.followed == []
    assert world.counted(ReloadOutcome.REFUSED) == 1
    # The next right one is compared with what runs.
    assert await world.reload("proxy.connections.max=5\n") is ReloadOutcome.OK
    assert (world.said("config_changed", "old", "new"), world.troubles) == ([("(unset)", "5")], [])


async def test_keys_without_effect_are_told_until_they_are_corrected(tmp_path: Path) -> None:
    """Failed before: one line on standard error at the start, and nothing in any other place."""
    world = World(tmp_path, "log.level=info\nlog.level=info\n")
    assert world.troubles == ["config_odd"]
    await world.reload("")
    assert world.troubles == []


async def test_a_file_that_is_gone_or_a_fault_of_ours_changes_nothing(world: World) -> None:
    world.refusal = RuntimeError("a bug")
    assert await world.reload("expert.tier.linger.ms=1\n") is ReloadOutcome.REFUSED
    assert len(world.said("config_reload_fault")) == 1
    world.refusal = ssl.SSLError("ee key too small")
    assert await world.reload() is ReloadOutcome.REFUSED
    ((problem,),) = world.said("config_problem", "problem")
    assert str(problem).startswith(f"{CERTIFICATE}: ")
    world.file.unlink()
    assert await world.reload() is ReloadOutcome.REFUSED
    assert len(world.said("config_problem")) == 1


async def test_a_secret_that_changed_is_seen_and_not_shown(tmp_path: Path) -> None:
    sasl = "upstream.security.protocol=SASL_PLAINTEXT\nupstream.sasl.mechanism=PLAIN\nupstream.sasl.username=tidegate\n"
    world = World(tmp_path, sasl + "upstream.sasl.password=first-secret\nrsm.config.password=first-secret\n")
    await world.reload(sasl + "upstream.sasl.password=second-secret\nrsm.config.password=second-secret\n")
    waiting = world.said("config_restart_needed", "key", "old", "new")
    assert waiting == [(key, "[hidden]", "[hidden]") for key in ("upstream.sasl.password", "rsm.config.password")]
    assert "secret" not in repr(world.logs)


async def test_a_renewed_certificate_is_followed_and_its_end_is_told(tmp_path: Path) -> None:
    server_certificate(tmp_path)
    lines = f"{CERTIFICATE}=server.pem\n{KEY}=server.key\n"
    world = World(tmp_path, lines)
    assert await world.reload() is ReloadOutcome.UNCHANGED
    name = "tidegate_certificate_expiry_timestamp_seconds"
    first_end_s = world.registry.sample_value(name, {"key": CERTIFICATE})
    certificate, _ = server_certificate(tmp_path, years=101)
    assert await world.reload() is ReloadOutcome.OK
    assert world.said("config_changed", "key") == [(CERTIFICATE,), (KEY,)]
    assert str(world.said("config_changed", "new")[0][0]).startswith("valid until 2120")
    assert world.registry.sample_value(name, {"key": CERTIFICATE}) == expires_at_s(certificate.read_bytes())
    assert expires_at_s(certificate.read_bytes()) - 365 * 86_400 == first_end_s


def test_renewed_files_towards_brokers_wait_for_a_restart(tmp_path: Path) -> None:
    metadata = "rlmm.config.remote.log.metadata.consumer.ssl.truststore.location"
    for key, line in (("upstream.ssl.*", "upstream.ssl.ca.location"), ("remote.log.metadata.*.ssl.*", metadata)):
        server_certificate(tmp_path)
        lines = f"upstream.security.protocol=SSL\n{line}=server.pem\n"
        before = load_lines(tmp_path, lines)
        assert list(changes(before, load_lines(tmp_path, lines), has_tls=False)) == []
        server_certificate(tmp_path)
        (change,) = changes(before, load_lines(tmp_path, lines), has_tls=False)
        assert change == Change(key, "(content)", "(content)", Reload.RESTART)


async def test_changed_files_are_read_without_being_asked_to(tmp_path: Path, mock_clock: MockClock) -> None:
    (tmp_path / "server.properties").write_text("rsm.config.a=1\n")
    world = World(tmp_path, "broker.config=server.properties\n")

    async def looks(count: int) -> None:
        for _ in range(count):
            mock_clock.jump(WATCH_INTERVAL_S)
            await settled()

    with structlog.testing.capture_logs() as world.logs:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(world.reloader.run)
            await settled()
            await looks(3)
            assert world.followed == []
            world.write("broker.config=server.properties\nexpert.tier.linger.ms=7\n")
            await looks(1)
            assert world.followed == []
            await looks(1)
            assert len(world.followed) == 1
            (tmp_path / "server.properties").write_text("rsm.config.a=2\n")
            await looks(2)
            assert len(world.followed) == 2
            await looks(3)
            assert len(world.followed) == 2
            nursery.cancel_scope.cancel()
    assert world.said("config_changed", "key") == [("expert.tier.linger.ms",)]
    assert world.said("config_restart_needed", "key") == [("rsm.config.a",)]


async def test_what_another_process_follows_is_taken_over_without_the_file(
    tmp_path: Path, mock_clock: MockClock, nursery: trio.Nursery
) -> None:
    """Failed before: the file was read, which may be half edited."""
    supervisor, worker = World(tmp_path, "proxy.connections.max=5\n"), World(tmp_path, "proxy.connections.max=5\n")
    await supervisor.reload("proxy.connections.max=6\n")
    worker.write("proxy.connections.max=half edi\n")
    nursery.start_soon(worker.reloader.run)
    await worker.reloader.take_over(*supervisor.reloader.followed)
    assert [config.proxy.connections_max for config in worker.followed] == [6]
    assert worker.troubles == []
    # What has changed since is read as any change is.
    worker.write("proxy.connections.max=7\n")
    await settled()
    for _ in range(2):
        mock_clock.jump(WATCH_INTERVAL_S)
        await settled()
    assert [config.proxy.connections_max for config in worker.followed] == [6, 7]
