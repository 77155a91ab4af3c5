"""The part of `check` that looks at this machine: ports, what clients get, the folders of cache and audit log,
memory, open files; and at what of the configuration is insecure.

Ports are bound as `serve` binds them, and given back. Where a Tidegate with this configuration is running, it has them,
which is no fault.
"""

import errno
import http.client
import json
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from ipaddress import IPv4Address, IPv6Address, ip_address
from pathlib import Path
from urllib.parse import urlsplit

import trio

from metrics.troubles import TROUBLES, TroubleId
from protocol.wire.addresses import NodeAddress
from proxy.connection.address_book import AddressBook, Target, open_listeners
from proxy.connection.server_names import SniPattern
from proxy.readiness import Readiness
from storage.cache.disk import SURVIVABLE
from storage.cache.disk_folder import FolderInUseError, examine_folder
from storage.config.model import HostPort, SecurityProtocol
from storage.errors import StorageConfigError
from storage.owned_file import OwnedFile
from storage.sizes import shown_size
from tidegate.audit_log import unwritable
from tidegate.client_view import client_view
from tidegate.commands.report import Report
from tidegate.config.model import STDOUT, AdminConfig, Config
from tidegate.memory_limit import memory_bytes, memory_shortage
from tidegate.open_files import connections_max
from tidegate.open_files import shortage as files_shortage

ANSWER_S_MAX = 2.0
"""For a Tidegate that runs here to answer on its admin listener."""
AUTHORITY_AGE_MS_MAX = 60_000
"""Longer than this a right that was taken away is felt as still there."""


async def check_machine(config: Config, nodes: Sequence[NodeAddress], report: Report, workers: int) -> bool:
    """Whatever one look runs into, the others are made. False: `serve` would not start."""
    is_running, is_usable = await trio.to_thread.run_sync(_running, config.admin), True
    if is_running:
        report.ok(f"a serve is running with these addresses: it answers at admin.listen {config.admin.listen}")
    with report.guarded("the look at ports"):
        await check_listeners(config, nodes, report, is_running=is_running)
    with report.guarded("the look at what clients will meet"):
        await check_client_view(config, nodes, report)
    with report.guarded("the look at cache.path"):
        look = partial(check_cache, config, report, is_running=is_running)
        is_usable = await trio.to_thread.run_sync(look)
    with report.guarded("the look at audit.log"):
        await trio.to_thread.run_sync(check_audit_log, config, report)
    check_memory(config, report, workers)
    check_open_files(config, report, workers)
    return is_usable


async def check_listeners(config: Config, nodes: Sequence[NodeAddress], report: Report, *, is_running: bool) -> None:
    """Bind what `serve` will bind; report what clients will get for each of these brokers."""
    proxy, admin = config.proxy, config.admin.listen

    def taken(sentence: str, trouble: TroubleId | None = None) -> None:
        if not is_running:  # else that one has it
            report.wrong(sentence, trouble)

    async with trio.open_nursery() as nursery:
        for address, key in ((proxy.listen, "proxy.listen"), (admin, "admin.listen")):
            try:
                listeners = await open_listeners(address, key)
            except OSError as error:
                (taken if _is_taken(error) else report.wrong)(str(error))
            else:
                nursery.start_soon(_hold, listeners)
                report.ok(f"{key} {address} is free")
        if proxy.tls_sni_pattern is not None:
            pattern = SniPattern(proxy.tls_sni_pattern)
            told_port = proxy.listen.port if proxy.advertised_port_start is None else proxy.advertised_port_start
            told = {node.node_id: (pattern.host_of(node.node_id), told_port) for node in nodes}
        else:
            told = await _check_broker_ports(config, nodes, nursery, report, taken)
        for node in nodes:
            if node.node_id in told:
                host, port = told[node.node_id]
                any_port = " (any free port: another one at each start)" if _is_any_port(config, node.node_id) else ""
                report.ok(f"clients get {HostPort(host, port)} for broker {node.node_id}{any_port}")
        if _is_loopback(proxy.advertised_host) and not _is_loopback(proxy.listen.host):
            report.warning(
                f"proxy.advertised.host is {proxy.advertised_host}: clients on other machines reach themselves by it; "
                "name this machine as they know it"
            )
        nursery.cancel_scope.cancel()


async def check_client_view(config: Config, nodes: Sequence[NodeAddress], report: Report) -> None:
    """The certificate, and where the hosts lead that clients get."""
    found = await client_view(config.proxy, config.proxy.tls, [node.node_id for node in nodes])
    for finding in found:
        (report.wrong if finding.is_fault else report.warning)(finding.says, finding.trouble)
    if not found:
        what = "" if config.proxy.tls is None else "the certificate is for the hosts that clients get, and "
        report.ok(f"{what}these hosts lead to this machine")


async def _check_broker_ports(
    config: Config,
    nodes: Sequence[NodeAddress],
    nursery: trio.Nursery,
    report: Report,
    taken: Callable[[str, TroubleId], None],
) -> dict[int, tuple[str, int]]:
    """Return the hosts and ports that clients get, by the very book that `serve` has."""

    async def hold(listeners: list[trio.SocketListener], _target: Target) -> None:
        await _hold(listeners)

    book = AddressBook(config.proxy, nursery, hold, readiness=Readiness(logs=False))
    told = await book.advertise(nodes)
    for node_id, reason in book.withheld.items():
        sentence = f"clients will not hear of broker {node_id}: {reason}"
        (taken if os.strerror(errno.EADDRINUSE) in reason else report.wrong)(sentence, TroubleId.BROKER_WITHHELD)
    return told


async def _hold(listeners: Sequence[trio.SocketListener]) -> None:
    try:
        await trio.sleep_forever()
    finally:
        for listener in listeners:
            listener.socket.close()


def _is_any_port(config: Config, node_id: int) -> bool:
    proxy = config.proxy
    return (
        proxy.tls_sni_pattern is None
        and proxy.advertised_port_start is None
        and proxy.broker_port_start == 0
        and node_id not in proxy.broker_ports
    )


def _is_taken(error: OSError) -> bool:
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno == errno.EADDRINUSE


def _running(admin: AdminConfig) -> bool:
    """Return whether a Tidegate answers at the admin listener's address."""
    host = admin.listen.host
    address = _address(host)
    if not host or (address is not None and address.is_unspecified):
        host = "127.0.0.1"
    connection = http.client.HTTPConnection(host, admin.listen.port, timeout=ANSWER_S_MAX)
    try:
        connection.request("GET", "/readyz")
        answer = json.loads(connection.getresponse().read(1 << 20))
    except (OSError, http.client.HTTPException, ValueError):
        return False  # nobody, or somebody else
    finally:
        connection.close()
    return isinstance(answer, dict) and {"ready", "degraded"} <= answer.keys()


def check_cache(config: Config, report: Report, *, is_running: bool) -> bool:
    """Blocking: whether the cache's folder can be used, without making or changing anything in it. False: `serve` would
    not start."""
    path = config.cache.path
    if path is None:
        report.ok("cache.path is not set: blocks are cached in memory only")
        return True
    try:
        owner = path.stat().st_uid if path.exists() else os.geteuid()
        if owner != os.geteuid() == 0:
            report.warning(
                f"cache.path {path} belongs to user {owner}, and this check is root's: run it as the user of serve"
            )
            return True
        for part in (path, *sorted((path / "workers").glob("[0-9]*"))):
            examine_folder(part)
        existing = next(folder for folder in (path, *path.parents) if folder.exists())
        _require_writable(existing)
        free_bytes = os.statvfs(existing).f_bavail * os.statvfs(existing).f_frsize
        held_bytes = _held_bytes(path)
    except StorageConfigError as error:
        if is_running and isinstance(error, FolderInUseError):
            report.ok(f"cache.path {path} is that one's")
            return True
        report.wrong(str(error), TroubleId.CACHE_DISK_UNAVAILABLE)
        return isinstance(error, FolderInUseError)  # it serves without
    except OSError as error:
        is_survived = error.errno in SURVIVABLE
        sentence = TROUBLES[TroubleId.CACHE_DISK_UNAVAILABLE].sentence(f"cache.path {path}: {error.strerror}")
        if not is_survived:
            sentence = (
                f"cache.path {path} cannot be written by this user ({os.geteuid()}): {error.strerror}, so serve does "
                "not start; name a folder that belongs to it, or chown it"
            )
        report.wrong(sentence, TroubleId.CACHE_DISK_UNAVAILABLE)
        return is_survived
    report.ok(f"cache.path {path} can be written")
    if free_bytes + held_bytes < config.cache.disk_bytes:
        report.warning(
            f"cache.path {path} has {shown_size(free_bytes)} free, and cache.disk.bytes may take "
            f"{shown_size(config.cache.disk_bytes)}: lower it, or use a larger disk"
        )
    return True


def _require_writable(folder: Path) -> None:
    """Raises OSError. The file has no name, and is gone at once."""
    with tempfile.TemporaryFile(dir=folder, buffering=0) as file:
        file.write(b"?")  # a disk that is full gives a name, and no room


def _held_bytes(path: Path) -> int:
    """Return what the cache holds already."""
    return sum(file.stat().st_size for file in (path / "blocks").rglob("*-*-*") if file.is_file())


def check_audit_log(config: Config, report: Report) -> None:
    """Blocking: whether `serve` could add to the audit log, or make it, without doing so."""
    if config.audit.log is None or config.audit.log == STDOUT:
        return
    path = Path(config.audit.log)
    try:
        if os.path.lexists(path):
            OwnedFile(path).append(b"")
        else:
            _require_writable(path.parent)
    except OSError as error:
        report.wrong(f"{unwritable(config.audit.log, error)}; serve does not start so")
        return
    report.ok(f"audit.log {path} can be written")


def check_memory(config: Config, report: Report, workers: int) -> None:
    """Check that there is as much memory as the configuration allows itself."""
    limit_bytes = memory_bytes()
    shortage = memory_shortage(config, workers, limit_bytes)
    if shortage is None:
        report.ok(f"there is memory for memory.max.bytes: {shown_size(limit_bytes)}")
    else:
        sentence, is_sure = shortage
        (report.wrong if is_sure else report.warning)(sentence, TroubleId.MEMORY_SHORT)


def check_open_files(config: Config, report: Report, workers: int) -> None:
    """Check that each process may have as many files open as its connections need."""
    problem = files_shortage(config, workers)
    if problem is None:
        report.ok(f"the limit on open files is enough for {connections_max(config, workers)} client connections")
    else:
        report.warning(problem, TroubleId.OPEN_FILES_FEW)


def check_security(config: Config, report: Report) -> None:
    """Warn of what is insecure."""
    found = list(_insecure(config))
    for sentence in found:
        report.warning(sentence)
    if not found:
        report.ok("nothing insecure was seen")


def _insecure(config: Config) -> Iterator[str]:
    proxy, admin, upstream = config.proxy, config.admin.listen, config.upstream.security
    if upstream.protocol.has_tls and proxy.tls is None and not _is_loopback(proxy.listen.host):
        yield (
            f"upstream.security.protocol is {upstream.protocol}, but clients come to proxy.listen {proxy.listen} in "
            "plain text: anyone on the way can read records and passwords; set proxy.tls.certificate.file"
        )
    if not upstream.protocol.has_sasl:
        yield (
            f"upstream.security.protocol is {upstream.protocol}: to brokers all clients are ANONYMOUS at Tidegate's "
            "address, so ACLs for hosts or users cannot tell them apart; use a listener with SASL where that matters"
        )
    for name, client in (
        ("upstream.ssl.endpoint.identification.algorithm", upstream),
        ("ssl.endpoint.identification.algorithm of the metadata topic's client", config.metadata_client.security),
    ):
        is_told = client is upstream and name != "upstream.ssl.endpoint.identification.algorithm"
        if client.tls is not None and not client.tls.verify_hostname and not is_told:
            yield f"{name} is off: any certificate of that authority passes for a broker's; set it to https"
    if config.metadata_client.security.protocol is SecurityProtocol.SASL_PLAINTEXT:
        yield "Tidegate's own password goes to brokers in plain text: use a SASL_SSL listener"
    if config.authority.age_ms_max > AUTHORITY_AGE_MS_MAX:
        yield (
            f"authority.max.age.ms is {config.authority.age_ms_max}: for so long a client that lost its right to a "
            "topic still reads it from the tier; a second is enough"
        )
    if not _is_loopback(admin.host):
        yield (
            f"admin.listen {admin} can be reached from other machines and asks for no password: it shows topic and "
            "client names; use 127.0.0.1, or let a firewall pass Prometheus alone"
        )
    for name, text in config.remote_storage_config.items():
        is_url = text.strip().lower().startswith("http://") and not _is_loopback(urlsplit(text.strip()).hostname)
        if is_url or "defaultendpointsprotocol=http;" in text.lower():
            yield (
                f"{config.remote_storage_prefix}{name} is http: records and signed requests pass in plain text; use "
                "https://"
            )


def _is_loopback(host: str | None) -> bool:
    address = _address(host or "")
    return host == "localhost" or (address is not None and address.is_loopback)


def _address(host: str) -> IPv4Address | IPv6Address | None:
    """None: a host name."""
    try:
        return ip_address(host)
    except ValueError:
        return None
