"""How the TLS handshakes of clients end: counted, and told while most of the last minute's failed.

A client that does not trust us says so by an alert, of which nobody else hears. One that closes without a word is most
often a balancer that looks whether the port is open, so it counts as neither good nor bad.
"""

import ssl
from collections import Counter, deque
from typing import Final

import trio

from metrics.meters import HandshakeOutcome, RelayMeter

WINDOW_S: Final = 60.0
FAILED_MIN: Final = 5
"""Fewer failures in the window are somebody's mistake, not ours."""

_OUTCOMES: Final = (
    ("ALERT_UNKNOWN_CA", HandshakeOutcome.UNTRUSTED),
    ("DID_NOT_RETURN_A_CERTIFICATE", HandshakeOutcome.CLIENT_CERTIFICATE),
    ("CERTIFICATE_VERIFY_FAILED", HandshakeOutcome.CLIENT_CERTIFICATE),
    ("CERTIFICATE", HandshakeOutcome.REFUSED),
    ("UNSUPPORTED_PROTOCOL", HandshakeOutcome.PROTOCOL),
    ("NO_SHARED", HandshakeOutcome.PROTOCOL),
    ("PROTOCOL_VERSION", HandshakeOutcome.PROTOCOL),
    ("WRONG_VERSION_NUMBER", HandshakeOutcome.NOT_TLS),
    ("PACKET_LENGTH", HandshakeOutcome.NOT_TLS),
    ("BAD_RECORD_TYPE", HandshakeOutcome.NOT_TLS),
    ("HTTP", HandshakeOutcome.NOT_TLS),
    ("EOF", HandshakeOutcome.CLOSED),
)
"""By a part of OpenSSL's reason; the first that fits."""

_SAID: Final = {
    HandshakeOutcome.UNTRUSTED: (
        "clients do not trust the issuer of proxy.tls.certificate.file",
        "give them its authority, or append the intermediate's certificate to the file",
    ),
    HandshakeOutcome.REFUSED: (
        "clients refuse proxy.tls.certificate.file",
        "check its dates, and that it is for the hosts that clients get (`tidegate check`)",
    ),
    HandshakeOutcome.CLIENT_CERTIFICATE: (
        "clients show no certificate that proxy.tls.client.ca.file vouches for",
        "check theirs, and proxy.tls.client.auth",
    ),
    HandshakeOutcome.NOT_TLS: ("clients do not speak TLS", "check their security.protocol, or unset proxy.tls.*"),
    HandshakeOutcome.PROTOCOL: ("clients have no TLS version or cipher in common with us", "TLS 1.2 is the least"),
    HandshakeOutcome.TIMEOUT: ("clients do not end their TLS handshakes in time", "check the network between"),
    HandshakeOutcome.OTHER: ("clients' TLS handshakes fail", "see log client_handshake_failed"),
}
"""The cause, and what to do."""


def outcome_of(error: BaseException) -> HandshakeOutcome:
    """Why a handshake failed."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, trio.TooSlowError):
            return HandshakeOutcome.TIMEOUT
        if isinstance(cause, ssl.SSLError):
            reason = cause.reason or "EOF"
            return next((outcome for part, outcome in _OUTCOMES if part in reason), HandshakeOutcome.OTHER)
        cause = cause.__cause__
    return HandshakeOutcome.CLOSED


class Handshakes:
    """Those of the last minute, by second. Owned by the trio thread."""

    def __init__(self, meter: RelayMeter) -> None:
        self._meter = meter
        self._seconds: deque[tuple[int, Counter[HandshakeOutcome]]] = deque()

    def note(self, outcome: HandshakeOutcome) -> None:
        """One has ended."""
        self._meter.on_handshake(outcome)
        second = int(trio.current_time())
        if not self._seconds or self._seconds[-1][0] != second:
            self._forget_old()
            self._seconds.append((second, Counter()))
        self._seconds[-1][1][outcome] += 1

    def complaints(self) -> list[str]:
        """Return what an operator is to know, if most of the last minute's failed."""
        self._forget_old()
        found = sum((counts for _, counts in self._seconds), Counter[HandshakeOutcome]())
        done = found.pop(HandshakeOutcome.OK, 0)
        found.pop(HandshakeOutcome.CLOSED, None)
        failed = found.total()
        if failed < FAILED_MIN or failed <= done:
            return []
        outcome = found.most_common(1)[0][0]
        cause, remedy = _SAID[outcome]
        return [f"{cause}: most of the last minute's TLS handshakes failed ({outcome.value}); {remedy}"]

    def _forget_old(self) -> None:
        while self._seconds and self._seconds[0][0] <= trio.current_time() - WINDOW_S:
            self._seconds.popleft()
