"""What clients will meet: the certificate that they are shown, and where the hosts lead that they get.

Rule 1. Every host that clients get must be among the certificate's names, and so must the bootstrap's. Brokers are
        those that are known now; before one is, `check` guesses that there is a broker 0.
Rule 2. A host must resolve, and to this machine; the latter only where no key says that something stands in front of
        it: `proxy.advertised.port.start`, `proxy.protocol`.
Rule 3. Whether a certificate's issuer is a root that clients trust, or an intermediate whose certificate is missing,
        cannot be known of a private authority: `check` alone tells (`is_guess`). A public one signs by intermediates.
Rule 4. A running `serve` looks again when the certificate or the brokers have changed, and once in LOOK_S.
"""

import errno
import socket
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from ipaddress import ip_address
from typing import TYPE_CHECKING, Final

import trio

from metrics.troubles import TROUBLES, Severity, TroubleId
from proxy.connection.server_names import SniPattern
from proxy.readiness import Readiness
from proxy.settings import NODE_ID_VARIABLE, ProxyConfig, ServerTls
from proxy.upstream.cluster import Cluster
from tidegate.certificate_dates import shown_date

if TYPE_CHECKING:
    from cryptography.x509 import Certificate

EXPIRES_SOON_S = 14 * 86_400.0
LOOK_S = 60.0
CHANGE_S = 1.0
RESOLVE_S_MAX = 5.0
HOSTS_MAX = 50
"""So many of the brokers' names are looked up."""

SHOWN_MAX = 5

CERTIFICATE_KEY = "proxy.tls.certificate.file"

OWN_TROUBLES: Final = (
    TroubleId.CERTIFICATE_EXPIRED,
    TroubleId.CERTIFICATE_NOT_YET_VALID,
    TroubleId.CERTIFICATE_NAMES,
    TroubleId.CERTIFICATE_ISSUER,
    TroubleId.CERTIFICATE_EXPIRES_SOON,
    TroubleId.HOST_NOT_FOUND,
    TroubleId.HOST_ELSEWHERE,
)


@dataclass(frozen=True, slots=True)
class Finding:
    """`is_guess`: it may be as it should."""

    trouble: TroubleId
    cause: str
    is_guess: bool = False

    @property
    def says(self) -> str:
        """Return a sentence, from the cause to the remedy."""
        return f"{self.cause}; {TROUBLES[self.trouble].remedy}"

    @property
    def is_fault(self) -> bool:
        """Return whether clients are refused now."""
        return TROUBLES[self.trouble].severity is Severity.CRITICAL and not self.is_guess


async def watch_client_view(
    proxy: ProxyConfig, tls: Callable[[], ServerTls | None], cluster: Cluster, readiness: Readiness
) -> None:
    """Tell readiness of what clients will not like, until cancelled."""
    seen: object = None
    looked_s = -LOOK_S
    while True:
        now = tls(), frozenset(cluster.brokers)
        if now != seen or trio.current_time() - looked_s >= LOOK_S:
            seen, looked_s = now, trio.current_time()
            found = [each for each in await client_view(proxy, now[0], now[1]) if not each.is_guess]
            for trouble in OWN_TROUBLES:
                readiness.tell(trouble, [each.says for each in found if each.trouble is trouble])
        await trio.sleep(CHANGE_S)


async def client_view(
    proxy: ProxyConfig, tls: ServerTls | None, node_ids: Iterable[int], now_s: float | None = None
) -> list[Finding]:
    """Return what clients of these brokers will not like."""
    nodes, found = sorted(node_ids), list[Finding]()
    hosts = _hosts(proxy, nodes)
    if tls is not None:
        now_s = time.time() if now_s is None else now_s
        named = _hosts(proxy, nodes or [0])
        guessed = named.keys() - hosts.keys()
        found += await trio.to_thread.run_sync(_certificate, tls.certificate_chain_pem, named, guessed, now_s)
    return [*found, *await _directions(hosts, is_fronted=_is_fronted(proxy))]


def _hosts(proxy: ProxyConfig, node_ids: Sequence[int]) -> dict[str, str]:
    """By host that clients get, or bootstrap from, the key that names it."""
    told = {}
    if proxy.tls_sni_pattern is not None:
        pattern = SniPattern(proxy.tls_sni_pattern)
        told = {pattern.host_of(node_id): "proxy.tls.sni.pattern" for node_id in node_ids}
        if proxy.advertised_host == proxy.listen.host:
            return told  # nobody has named the bootstrap
    key = "proxy.advertised.host"
    if NODE_ID_VARIABLE in proxy.advertised_host:
        return {proxy.advertised_host.replace(NODE_ID_VARIABLE, str(node_id)): key for node_id in node_ids}
    return {proxy.advertised_host: key, **told}


def _is_fronted(proxy: ProxyConfig) -> bool:
    return proxy.advertised_port_start is not None or proxy.protocol


# The certificate.


def _certificate(chain_pem: bytes, hosts: Mapping[str, str], guessed: AbstractSet[str], now_s: float) -> list[Finding]:
    from cryptography.x509 import load_pem_x509_certificates  # a tenth of a second that others need not spend

    chain = load_pem_x509_certificates(chain_pem)
    return [*_dates(chain, now_s), *_names(chain[0], hosts, guessed), *_issuer(chain)]


def _dates(chain: "Sequence[Certificate]", now_s: float) -> Iterator[Finding]:
    ends_s = min(each.not_valid_after_utc.timestamp() for each in chain)
    begins_s = max(each.not_valid_before_utc.timestamp() for each in chain)
    if ends_s <= now_s:
        yield Finding(
            TroubleId.CERTIFICATE_EXPIRED, f"{CERTIFICATE_KEY} expired at {shown_date(ends_s)}: clients refuse it"
        )
    elif ends_s - now_s < EXPIRES_SOON_S:
        yield Finding(TroubleId.CERTIFICATE_EXPIRES_SOON, f"{CERTIFICATE_KEY} expires at {shown_date(ends_s)}")
    if begins_s > now_s:
        yield Finding(
            TroubleId.CERTIFICATE_NOT_YET_VALID,
            f"{CERTIFICATE_KEY} is not valid before {shown_date(begins_s)}: clients refuse it",
        )


def _names(leaf: "Certificate", hosts: Mapping[str, str], guessed: AbstractSet[str]) -> Iterator[Finding]:
    from cryptography.x509 import DNSName, ExtensionNotFound, IPAddress, SubjectAlternativeName

    try:
        names = leaf.extensions.get_extension_for_class(SubjectAlternativeName).value
    except ExtensionNotFound:
        yield Finding(
            TroubleId.CERTIFICATE_NAMES,
            f"{CERTIFICATE_KEY} has no subject alternative name, and clients look at no other: make one with "
            + ", ".join(hosts),
            is_guess=hosts.keys() <= guessed,
        )
        return
    dns, addresses = names.get_values_for_type(DNSName), names.get_values_for_type(IPAddress)
    missing: dict[str, list[str]] = {}
    for host, key in hosts.items():
        if not _is_for(host, dns, [*map(str, addresses)]):
            missing.setdefault(key, []).append(host)
    for key, wanted in missing.items():
        names_of_it = ", ".join([*dns, *map(str, addresses)])
        yield Finding(
            TroubleId.CERTIFICATE_NAMES,
            f"{CERTIFICATE_KEY} is for {names_of_it} and not for {', '.join(wanted[:SHOWN_MAX])}, which {key} tells "
            "clients: they refuse it",
            is_guess={*wanted} <= guessed,
        )


def _is_for(host: str, dns: Iterable[str], addresses: Sequence[str]) -> bool:
    """As RFC 6125 has it: a wildcard stands for the whole first label."""
    try:
        return str(ip_address(host)) in addresses
    except ValueError:
        wanted = host.lower().removesuffix(".")
    names = {name.lower() for name in dns}
    return wanted in names or f"*.{wanted.partition('.')[2]}" in names


def _issuer(chain: "Sequence[Certificate]") -> Iterator[Finding]:
    from cryptography.x509 import ExtensionNotFound, PrecertificateSignedCertificateTimestamps

    leaf = chain[0]
    if leaf.issuer == leaf.subject or any(_has_issued(each, leaf) for each in chain[1:]):
        return
    try:
        leaf.extensions.get_extension_for_class(PrecertificateSignedCertificateTimestamps)
        is_public = True
    except ExtensionNotFound:
        is_public = False
    issuer = leaf.issuer.rfc4514_string()
    yield Finding(
        TroubleId.CERTIFICATE_ISSUER,
        f"{CERTIFICATE_KEY} holds no certificate of the issuer, {issuer}: clients that do not know it refuse ours",
        is_guess=not is_public and len(chain) == 1,
    )


def _has_issued(issuer: "Certificate", issued: "Certificate") -> bool:
    from cryptography.exceptions import InvalidSignature

    try:
        issued.verify_directly_issued_by(issuer)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


# Where hosts lead.


async def _directions(hosts: Mapping[str, str], *, is_fronted: bool) -> list[Finding]:
    lost: dict[str, dict[str, str]] = {}
    elsewhere: dict[str, dict[str, str]] = {}

    async def look(host: str, key: str) -> None:
        try:
            with trio.fail_after(RESOLVE_S_MAX):
                answers = await trio.socket.getaddrinfo(host, 0, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError, trio.TooSlowError) as error:
            lost.setdefault(key, {})[host] = str(error) or f"no answer within {RESOLVE_S_MAX:g} s"
            return
        if not is_fronted and not any(_is_own(family, address) for family, _, _, _, address in answers):
            elsewhere.setdefault(key, {})[host] = ", ".join(sorted({str(address[0]) for *_, address in answers}))

    async with trio.open_nursery() as nursery:
        for host, key in [*hosts.items()][:HOSTS_MAX]:
            nursery.start_soon(look, host, key)
    return [
        Finding(TroubleId.HOST_NOT_FOUND, f"{key} tells clients {_shown(reasons)}: not to be found by DNS")
        for key, reasons in lost.items()
    ] + [
        Finding(TroubleId.HOST_ELSEWHERE, f"{key} tells clients {_shown(addresses)}: no address of this machine")
        for key, addresses in elsewhere.items()
    ]


def _shown(hosts: Mapping[str, str]) -> str:
    named = sorted(hosts)[:SHOWN_MAX]
    return ", ".join(f"{host} ({hosts[host]})" for host in named) + (", …" if len(hosts) > len(named) else "")


def _is_own(family: socket.AddressFamily, address: tuple[object, ...]) -> bool:
    """Return whether it can be listened at; what else keeps it from that others tell."""
    try:
        with socket.socket(family, socket.SOCK_STREAM) as tried:
            tried.bind(address)
    except OSError as error:
        return error.errno != errno.EADDRNOTAVAIL
    return True
