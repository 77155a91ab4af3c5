"""Reading the configuration again while the process runs: on SIGHUP, and when one of its files has changed.

Rules:
1. A configuration with a problem changes nothing: each problem is a line, and the old one goes on.
2. What the table of keys marks as reloadable is followed (`tidegate.live_settings`), old and new value in a line
   each; what differs otherwise is named as needing a restart. Secrets are shown masked.
3. A file is read when two looks in a row saw it in the same new state: a change is often of several files.
4. Nothing here ends the process.
"""

import enum
import ssl
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import structlog
import trio

from metrics.meters import Meters, ReloadOutcome
from metrics.troubles import TroubleId
from proxy.readiness import Readiness
from proxy.settings import ServerTls
from storage.config import ConfigError
from storage.config.keys import Reload
from tidegate.certificate_dates import CertificateWatch, certificates_in_use, expires_at_s, shown_date
from tidegate.changed_files import FileWatch, Seen, look
from tidegate.config.load import UNSET
from tidegate.config.model import SERVE_KEYS, Config, EffectiveKey

WATCH_INTERVAL_S = 2.0

CONTENT = "(content)"
"""Stands for a file's content in a line about a change."""

# What TLS towards clients is made of; the pattern of server names is about addresses, and needs a restart.
_TLS_KEYS = frozenset(
    key.name for key in SERVE_KEYS.keys if key.name.startswith("proxy.tls.") and key.reload is Reload.NEW_CONNECTIONS
)

_log = structlog.get_logger(__name__)


class Cause(enum.StrEnum):
    """Why the configuration is read again."""

    SIGNAL = "SIGHUP"
    FILES = "files changed"


@dataclass(frozen=True, slots=True)
class Change:
    """A key whose value is another now, as it may be shown."""

    key: str
    old: str
    new: str
    reload: Reload


def changes(old: Config, new: Config, *, has_tls: bool) -> Iterator[Change]:
    """Yield what differs between two configurations, and when a running process follows.

    Args:
        has_tls: whether clients are served by TLS now, which only a restart changes.
    """
    old_keys, new_keys = ({key.name: key for key in config.effective} for config in (old, new))
    turns_tls = has_tls != (new.proxy.tls is not None)
    named: set[str] = set()
    for name in [*new_keys, *(name for name in old_keys if name not in new_keys)]:
        before, after = old_keys.get(name), new_keys.get(name)
        if (before and before.text) != (after and after.text):
            named.add(name)
            key = SERVE_KEYS.by_name.get(name)
            restart = key is None or (turns_tls and name in _TLS_KEYS)
            yield Change(name, _shown(before), _shown(after), Reload.RESTART if restart or not key else key.reload)
    if not named & _TLS_KEYS:
        yield from _tls_content(old.proxy.tls, new.proxy.tls)
    if old.upstream.security != new.upstream.security:
        if not any(name.startswith("upstream.") for name in named):
            yield Change("upstream.ssl.*", CONTENT, CONTENT, Reload.RESTART)
    elif old.metadata_client.security != new.metadata_client.security and not named:
        yield Change("remote.log.metadata.*.ssl.*", CONTENT, CONTENT, Reload.RESTART)


class Reloader:
    """Holds the configuration that runs, and changes it.

    Args:
        load: reads files and environment again; may block.
        follow: makes the process follow; raises ssl.SSLError, with nothing changed, when OpenSSL refuses a certificate.
    """

    def __init__(
        self,
        config: Config,
        load: Callable[[], Config],
        follow: Callable[[Config], None],
        meters: Meters,
        readiness: Readiness,
    ) -> None:
        self._started = config
        self._last = config
        """The last one that was read without a problem: what may be followed is followed as it says."""
        self._tls = config.proxy.tls
        self._load = load
        self._follow = follow
        self._meter = meters.config
        self._readiness = readiness
        self._certificates = CertificateWatch(meters.tls)
        self._restart_needed: list[Change] = []
        self._reading = trio.Lock()
        self._watch = FileWatch({})
        self._tell_odd(config)

    async def run(self) -> None:
        """Watch the files and the certificates; until cancelled."""
        seen = await self._look()
        if not self._watch.done:
            self._watch.acted_upon(seen)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._certificates.run, self._chains)
            while True:
                await trio.sleep(WATCH_INTERVAL_S)
                if self._watch.has_settled(await self._look()):
                    await self.reload(Cause.FILES)

    async def reload(self, cause: Cause) -> ReloadOutcome:
        """Read the configuration again, now."""
        async with self._reading:
            _log.info("config_reload", cause=cause.value)
            # Before they are read: a change in between is then one that is still to be acted upon.
            return await self._act_upon(await self._look(), self._load)

    @property
    def followed(self) -> tuple[Config, Seen]:
        """Return the configuration that is followed, and the state of its files that was acted upon."""
        return self._last, self._watch.done

    async def take_over(self, config: Config, seen: Seen) -> None:
        """Follow what another process of ours follows, as it has it in memory; files that have changed since are read
        as any that change."""
        async with self._reading:
            await self._act_upon(seen, lambda: config)

    async def _act_upon(self, seen: Seen, load: Callable[[], Config]) -> ReloadOutcome:
        self._watch.acted_upon(seen)
        outcome = await self._reload(load)
        self._meter.on_reload(outcome, time.time(), len(self._restart_needed))
        return outcome

    async def _reload(self, load: Callable[[], Config]) -> ReloadOutcome:
        try:
            wanted = await trio.to_thread.run_sync(load)
            has_tls = self._tls is not None
            differences = [*changes(self._last, wanted, has_tls=has_tls)]
            self._follow(wanted)
        except ConfigError as error:
            return self._refused(error.problems)
        except ssl.SSLError as error:
            return self._refused([f"proxy.tls.certificate.file: {error}"])
        except Exception as error:  # a fault of ours here must not end a process that serves
            _log.error("config_reload_fault", exc_info=error)
            self._readiness.tell(TroubleId.CONFIG_REFUSED, [f"a fault of Tidegate's kept it from the file: {error!r}"])
            return ReloadOutcome.REFUSED
        followed = [change for change in differences if change.reload is not Reload.RESTART]
        waiting = [
            change for change in changes(self._started, wanted, has_tls=has_tls) if change.reload is Reload.RESTART
        ]
        is_unchanged = not followed and waiting == self._restart_needed
        self._say(followed, waiting, wanted)
        self._last, self._restart_needed = wanted, waiting
        if has_tls and wanted.proxy.tls is not None:
            self._tls = wanted.proxy.tls
        self._certificates.tell(self._chains())
        return ReloadOutcome.UNCHANGED if is_unchanged else ReloadOutcome.OK

    def _refused(self, problems: Sequence[str]) -> ReloadOutcome:
        for problem in problems:
            _log.error("config_problem", problem=problem, effect="the old configuration goes on")
        self._readiness.tell(TroubleId.CONFIG_REFUSED, problems)
        return ReloadOutcome.REFUSED

    def _say(self, followed: Iterable[Change], waiting: Iterable[Change], wanted: Config) -> None:
        for change in followed:
            _log.info("config_changed", key=change.key, old=change.old, new=change.new, effect=change.reload.value)
        self._readiness.tell(TroubleId.CONFIG_REFUSED)
        keys = [f"{change.key} is changed in the file, and takes effect with a restart" for change in waiting]
        self._readiness.tell(TroubleId.RESTART_NEEDED, keys)
        self._tell_odd(wanted)
        for change in waiting:
            _log.warning("config_restart_needed", key=change.key, old=change.old, new=change.new)
        for warning in wanted.warnings:
            if warning not in self._last.warnings:
                _log.warning("config_warning", reason=warning)

    def _tell_odd(self, config: Config) -> None:
        warnings = [warning for warning in config.warnings if warning != config.identity_trouble]
        self._readiness.tell(TroubleId.CONFIG_ODD, warnings)

    def _chains(self) -> dict[str, bytes]:
        return certificates_in_use(self._started, self._tls)

    async def _look(self) -> Seen:
        return await trio.to_thread.run_sync(look, sorted({*self._started.files.values(), *self._last.files.values()}))


def _tls_content(old: ServerTls | None, new: ServerTls | None) -> Iterator[Change]:
    """Files that are named as before and hold something else."""
    if old is None or new is None:
        return
    at = Reload.NEW_CONNECTIONS
    if old.certificate_chain_pem != new.certificate_chain_pem:
        before, after = (f"valid until {shown_date(expires_at_s(tls.certificate_chain_pem))}" for tls in (old, new))
        yield Change("proxy.tls.certificate.file", before, after, at)
    if old.private_key_pem != new.private_key_pem:
        yield Change("proxy.tls.key.file", CONTENT, CONTENT, at)
    if old.client_ca_certificates_pem != new.client_ca_certificates_pem:
        yield Change("proxy.tls.client.ca.file", CONTENT, CONTENT, at)


def _shown(key: EffectiveKey | None) -> str:
    return UNSET if key is None else key.value
