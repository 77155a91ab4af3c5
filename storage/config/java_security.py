"""The metadata topic's clients: Java client properties over `upstream.*` (see `storage.config.security`).

Part by part: `security.protocol`, the SASL identity (`sasl.mechanism` with `sasl.jaas.config`), and TLS (any `ssl.*`)
are each taken from the properties if given there, else from upstream.
"""

from collections.abc import Mapping
from typing import Final, TypeVar

from storage.config import jaas, tls_material
from storage.config.kinds import IDENTIFICATION, Kind, one_of
from storage.config.model import ClientSecurity, ClientTls, SaslCredentials, SaslMechanism, SecurityProtocol
from storage.config.sources import Setting
from storage.config.tls_material import TlsMaterialError

T = TypeVar("T")

PROTOCOL: Final = one_of(SecurityProtocol)
MECHANISM: Final = one_of(SaslMechanism)


class JavaSecurity:
    """One client's properties, by the names that Java's clients give them."""

    def __init__(
        self, properties: Mapping[str, tuple[str, Setting]], upstream: ClientSecurity, problems: list[str]
    ) -> None:
        """`properties`: name → (whole key, for problems; setting)."""
        self._properties = properties
        self._upstream = upstream
        self._problems = problems

    def security(self) -> ClientSecurity:
        """What the properties and upstream say together; what does not fit is noted as a problem."""
        protocol = self._parsed("security.protocol", PROTOCOL) or self._upstream.protocol
        return ClientSecurity(
            protocol=protocol,
            tls=self._tls() if protocol.has_tls else None,
            sasl=self._sasl(protocol) if protocol.has_sasl else None,
        )

    def _sasl(self, protocol: SecurityProtocol) -> SaslCredentials | None:
        if "sasl.jaas.config" not in self._properties:
            # An upstream whose protocol has SASL and lacks credentials has been reported as such.
            if self._upstream.sasl is None and not self._upstream.protocol.has_sasl:
                self._wrong("security.protocol", f"{protocol} needs sasl.jaas.config beside it, or upstream.sasl.*")
            return self._upstream.sasl
        text = self._text("sasl.jaas.config")
        if text is None:
            return None
        mechanism = self._parsed("sasl.mechanism", MECHANISM)
        if mechanism is None:
            if "sasl.mechanism" not in self._properties:
                self._wrong("sasl.jaas.config", "needs sasl.mechanism beside it: Kafka's default is Kerberos")
            return None
        try:
            return jaas.credentials(text, mechanism)
        except jaas.JaasError as error:
            self._wrong("sasl.jaas.config", str(error))
            return None

    def _tls(self) -> ClientTls:
        if not any(name.startswith("ssl.") for name in self._properties):
            return self._upstream.tls or ClientTls()
        own = self._own_identity()
        verify = self._parsed("ssl.endpoint.identification.algorithm", IDENTIFICATION)
        return ClientTls(
            ca_certificates_pem=self._trusted(),
            certificate_chain_pem=own[0] if own else None,
            private_key_pem=own[1] if own else None,
            verify_hostname=verify is not False,
        )

    def _trusted(self) -> bytes | None:
        inline = self._text("ssl.truststore.certificates")
        name = "ssl.truststore.location" if inline is None else "ssl.truststore.certificates"
        if name not in self._properties:
            return None
        try:
            data = self._file(name) if inline is None else tls_material.inline_pem(inline)
            return (
                None if data is None else tls_material.trusted_certificates(data, self._text("ssl.truststore.password"))
            )
        except TlsMaterialError as error:
            self._wrong(name, str(error))
            return None

    def _own_identity(self) -> tuple[bytes, bytes] | None:
        chain, key = self._text("ssl.keystore.certificate.chain"), self._text("ssl.keystore.key")
        name = "ssl.keystore.location" if chain is None else "ssl.keystore.certificate.chain"
        if name not in self._properties:
            return None
        try:
            if chain is not None:
                inline_chain, inline_key = tls_material.inline_pem(chain), tls_material.inline_pem(key or "")
                return tls_material.identity(inline_chain, inline_key, self._text("ssl.key.password"))
            data = self._file(name)
            if data is None:
                return None
            password = self._text("ssl.keystore.password")
            if tls_material.is_pem(data):
                password = self._text("ssl.key.password")
            return tls_material.store_identity(data, password)
        except TlsMaterialError as error:
            self._wrong(name, str(error))
            return None

    def _text(self, name: str) -> str | None:
        return self._properties[name][1].text if name in self._properties else None

    def _file(self, name: str) -> bytes | None:
        text = self._text(name)
        return None if text is None else tls_material.read_material(self._properties[name][1].folder / text.strip())

    def _parsed(self, name: str, kind: Kind[T]) -> T | None:
        text = self._text(name)
        if text is None:
            return None
        try:
            return kind.parse(text.strip())
        except ValueError as error:
            kerberos = "; Kerberos is not supported" if text.strip().upper() == "GSSAPI" else ""
            self._wrong(name, f"{text.strip()}: {error}{kerberos}")
            return None

    def _wrong(self, name: str, reason: str) -> None:
        if name in self._properties:
            key, setting = self._properties[name]
            self._problems.append(f"{setting.origin}: {key}: {reason}")
        else:
            self._problems.append(f"the metadata topic's client: {name}: {reason}")
