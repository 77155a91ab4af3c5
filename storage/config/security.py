"""Who Tidegate is to the brokers, from two spellings of the same thing.

- `upstream.*` is spelt as librdkafka spells it.
- The metadata topic's clients (`remote.log.metadata.common.client.*` with `.consumer.*` or `.producer.*` over it) are
  spelt as Java's clients spell them, and fall back to the first part by part: `security.protocol`, the SASL identity
  (`sasl.mechanism` with `sasl.jaas.config`) and TLS (any `ssl.*`) are each taken from the properties if given there,
  else from upstream. A broker's file often holds only the password there, since the broker itself knows listener and
  protocol. `metadata.identity=upstream` passes them over: what a broker's file has there is often a super user.
- `sasl.jaas.config` is one login module, read as Kafka's JaasConfig reads it with Java's StreamTokenizer:

      org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";

  Words are letters, digits, `.`, `-`, `_`, `$`; values are words or quoted with `"` or `'`. In quotes a backslash
  escapes: `\\n \\t \\r \\b \\f \\a \\v`, up to three octal digits; any other character stands for itself. Comments are
  `//` and `/* */`. Exactly one entry, ended by `;`. Kerberos and delegation tokens are refused. No message ever quotes
  an option's value.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final, TypeVar

from storage.config import ssl_contexts
from storage.config.keys import key
from storage.config.model import (
    ClientSecurity,
    ClientTls,
    HostPort,
    MetadataIdentity,
    Mode,
    SaslCredentials,
    SaslMechanism,
    SecurityProtocol,
    UpstreamConfig,
)
from storage.config.sources import (
    COMMON_CLIENT_PREFIX,
    CONSUMER_PREFIX,
    PRODUCER_PREFIX,
    ConfigError,
    Setting,
    Settings,
    Values,
    read_settings,
)
from storage.config.ssl_contexts import TlsMaterialError
from storage.config.value_kinds import FILE, HOST_PORTS, IDENTIFICATION, TEXT, Kind, one_of, optional

T = TypeVar("T")

JAAS_LENGTH_MAX: Final = 64 * 1024
_FLAGS: Final = ("required", "requisite", "sufficient", "optional")

PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTHBEARER_MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"

_MODULE_MECHANISMS: Final = {
    PLAIN_MODULE: (SaslMechanism.PLAIN,),
    SCRAM_MODULE: (SaslMechanism.SCRAM_SHA_256, SaslMechanism.SCRAM_SHA_512),
    OAUTHBEARER_MODULE: (SaslMechanism.OAUTHBEARER,),
}

_TOKEN = re.compile(
    r"""(?P<space>[\x00-\x20]+|//[^\n]*|/\*.*?\*/)
    |(?P<quoted>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<word>[A-Za-z0-9_.$\-\u00a0-\uffff]+)
    |(?P<sign>[=;])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}

_SASL_KEYS: Final = ("upstream.sasl.mechanism", "upstream.sasl.username", "upstream.sasl.password")
_SSL_KEYS: Final = ("upstream.ssl.ca.location", "upstream.ssl.certificate.location", "upstream.ssl.keystore.location")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpstreamKeys:
    """What `UpstreamConfig` is made of."""

    bootstrap_servers: tuple[HostPort, ...] = key(
        "upstream.bootstrap.servers",
        HOST_PORTS,
        "The brokers that are asked first.",
        section="Upstream: Tidegate's own identity, named as librdkafka names it",
    )
    security_protocol: SecurityProtocol = key(
        "upstream.security.protocol",
        one_of(SecurityProtocol),
        "How brokers are reached. Clients' upstream connections take only the transport from it.",
        default="PLAINTEXT",
    )
    sasl_mechanism: SaslMechanism | None = key(
        "upstream.sasl.mechanism",
        optional(one_of(SaslMechanism)),
        "Tidegate's own mechanism; clients' exchanges are relayed, whatever they use.",
        aliases=("upstream.sasl.mechanisms",),
    )
    sasl_username: str | None = key("upstream.sasl.username", optional(TEXT), "Tidegate's own user.")
    sasl_password: str | None = key("upstream.sasl.password", optional(TEXT), "Its password.", secret=True)
    ssl_ca: Path | None = key(
        "upstream.ssl.ca.location", optional(FILE), "PEM file of CA certificates; unset: the system's."
    )
    ssl_certificate: Path | None = key(
        "upstream.ssl.certificate.location", optional(FILE), "PEM file of Tidegate's own certificate and its chain."
    )
    ssl_key: Path | None = key(
        "upstream.ssl.key.location", optional(FILE), "PEM file of its private key; unset: the certificate's file."
    )
    ssl_key_password: str | None = key(
        "upstream.ssl.key.password", optional(TEXT), "The private key's password.", secret=True
    )
    ssl_keystore: Path | None = key(
        "upstream.ssl.keystore.location", optional(FILE), "PKCS#12 file instead of certificate and key."
    )
    ssl_keystore_password: str | None = key(
        "upstream.ssl.keystore.password", optional(TEXT), "The PKCS#12 file's password.", secret=True
    )
    ssl_verify_hostname: bool = key(
        "upstream.ssl.endpoint.identification.algorithm",
        IDENTIFICATION,
        "`none` checks the broker's certificate but not its host name.",
        default="https",
    )
    metadata_identity: MetadataIdentity | None = key(
        "metadata.identity",
        optional(one_of(MetadataIdentity)),
        "Who reads and writes `__remote_log_metadata`: `upstream`, by the keys above, or `broker`, by "
        "`remote.log.metadata.*` of the broker's file. Unset: `broker`.",
    )


def upstream_config(values: Values) -> UpstreamConfig:
    """Tidegate's own identity from `upstream.*`. Key by key, what it lacks or contradicts is noted as a problem."""
    given = values.group(UpstreamKeys)
    protocol = given.security_protocol
    for keys, has_effect in ((_SASL_KEYS, protocol.has_sasl), (_SSL_KEYS, protocol.has_tls)):
        for name in keys:
            if values.is_set(name) and not has_effect:
                values.warnings.append(f"{name} has no effect: upstream.security.protocol is {protocol}")
    security = ClientSecurity(
        protocol=protocol,
        tls=_upstream_tls(given, values) if protocol.has_tls else None,
        sasl=_upstream_sasl(given, values) if protocol.has_sasl else None,
    )
    names = ["upstream.sasl.username"] if security.sasl else [*_SSL_KEYS[1:]]
    set_names = [name for name in names if values.is_set(name)] if security.has_credentials else []
    return UpstreamConfig(
        bootstrap_servers=given.bootstrap_servers,
        security=security,
        identity_at=values.place(set_names[0]) if set_names else "",
    )


def _upstream_sasl(given: UpstreamKeys, values: Values) -> SaslCredentials | None:
    for name in _SASL_KEYS:
        if not values.is_set(name):
            values.wrong(name, "is required: upstream.security.protocol has SASL")
    if given.sasl_mechanism is None or given.sasl_username is None or given.sasl_password is None:
        return None
    return SaslCredentials(mechanism=given.sasl_mechanism, username=given.sasl_username, password=given.sasl_password)


def _upstream_tls(given: UpstreamKeys, values: Values) -> ClientTls:
    store, chain, own = given.ssl_keystore, given.ssl_certificate, None
    if store is not None and chain is not None:
        values.wrong("upstream.ssl.certificate.location", "upstream.ssl.keystore.location is set too: keep one of them")
    elif store is not None:
        own = attempt(
            lambda: ssl_contexts.store_identity(ssl_contexts.read_material(store), given.ssl_keystore_password),
            lambda reason: values.wrong("upstream.ssl.keystore.location", reason),
        )
    elif chain is not None:
        own = attempt(
            lambda: ssl_contexts.file_identity(chain, given.ssl_key, given.ssl_key_password),
            lambda reason: values.wrong("upstream.ssl.certificate.location", reason),
        )
    elif values.is_set("upstream.ssl.key.location"):
        values.wrong("upstream.ssl.key.location", "needs upstream.ssl.certificate.location")
    return ClientTls(
        ca_certificates_pem=trusted(values, "upstream.ssl.ca.location"),
        certificate_chain_pem=own[0] if own else None,
        private_key_pem=own[1] if own else None,
        verify_hostname=given.ssl_verify_hostname,
    )


def trusted(values: Values, name: str) -> bytes | None:
    """The CA certificates of the PEM file that a key names; None if it names none, or a wrong one."""
    file: Path | None = values[name]
    if file is None:
        return None
    return attempt(
        lambda: ssl_contexts.trusted_certificates(ssl_contexts.read_material(file), None),
        lambda reason: values.wrong(name, reason),
    )


def attempt(read: Callable[[], T], report: Callable[[str], None]) -> T | None:
    """Return what `read` gives; None if it raised TlsMaterialError or JaasError, whose message `report` got."""
    try:
        return read()
    except (TlsMaterialError, JaasError) as error:
        report(str(error))
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetadataClients:
    """Who reads the metadata topic, and who writes it. `trouble`: a sentence where the choice should be made."""

    consumer: UpstreamConfig
    producer: UpstreamConfig
    trouble: str | None = None


def metadata_clients(settings: Settings, upstream: UpstreamConfig, values: Values) -> MetadataClients:
    """By `metadata.identity`: upstream's identity, or each client's own properties over the common ones, and what they
    leave open from upstream."""
    wanted: MetadataIdentity | None = values["metadata.identity"]
    has_some = upstream.security.has_credentials or upstream.security.protocol.has_sasl  # else told of by now
    if wanted is MetadataIdentity.UPSTREAM and has_some:
        return MetadataClients(consumer=upstream, producer=upstream)
    consumer = _metadata_client(settings, CONSUMER_PREFIX, upstream, values.problems)
    more: list[str] = []
    producer = _metadata_client(settings, PRODUCER_PREFIX, upstream, more)
    if values["mode"] is Mode.STANDALONE:
        values.problems += [problem for problem in more if problem not in values.problems]
    elif more:
        producer = consumer  # which is not needed
    trouble = None
    has_both = upstream.security.has_credentials and consumer.security.has_credentials
    if wanted is None and has_both and _who(consumer.security) != _who(upstream.security):
        trouble = (
            "metadata.identity is not set, and both upstream.* and the metadata clients have credentials: "
            f"__remote_log_metadata is read with those of {consumer.identity_at}, not with {upstream.identity_at}; "
            "set metadata.identity to broker or upstream"
        )
    return MetadataClients(consumer=consumer, producer=producer, trouble=trouble)


def _who(security: ClientSecurity) -> object:
    return security.sasl or (security.tls and security.tls.certificate_chain_pem)


def _metadata_client(settings: Settings, prefix: str, upstream: UpstreamConfig, problems: list[str]) -> UpstreamConfig:
    properties: dict[str, tuple[str, Setting]] = {}
    for each in (COMMON_CLIENT_PREFIX, prefix):
        for name, setting in settings.metadata.items():
            if name.startswith(each):
                properties[name.removeprefix(each)] = (settings.metadata_prefix + name, setting)
    java = _JavaClient(properties, upstream.security, problems)
    servers = java.parsed("bootstrap.servers", HOST_PORTS) or upstream.bootstrap_servers
    security = java.security()
    return UpstreamConfig(
        bootstrap_servers=servers, security=security, identity_at=java.place(security) or upstream.identity_at
    )


def client_file_security(path: Path, environ: Mapping[str, str], otherwise: ClientSecurity) -> ClientSecurity:
    """Return what a client's properties file says, as Kafka's scripts take it (`--command-config`); what it leaves open
    is taken from `otherwise`, part by part. Keys of other things have no effect.

    Raises:
        ConfigError: with every problem found.
    """
    problems: list[str] = []
    settings = read_settings(path, environ, problems)
    java = _JavaClient({name: (name, setting) for name, setting in settings.items()}, otherwise, problems)
    security = java.security()
    if problems:
        raise ConfigError(problems)
    return security


class _JavaClient:
    """One client's properties, by the names that Java's clients give them."""

    def __init__(
        self, properties: Mapping[str, tuple[str, Setting]], upstream: ClientSecurity, problems: list[str]
    ) -> None:
        """`properties`: name → (whole key, for problems; setting)."""
        self._properties = properties
        self._upstream = upstream
        self._problems = problems

    def security(self) -> ClientSecurity:
        """Return what the properties and upstream say together; what does not fit is noted as a problem."""
        protocol = self.parsed("security.protocol", one_of(SecurityProtocol)) or self._upstream.protocol
        return ClientSecurity(
            protocol=protocol,
            tls=self._tls() if protocol.has_tls else None,
            sasl=self._sasl(protocol) if protocol.has_sasl else None,
        )

    def place(self, security: ClientSecurity) -> str:
        """The key of its own that gives the credentials, and where it stands; empty: none does."""
        names = ("sasl.jaas.config",) if security.sasl else ("ssl.keystore.certificate.chain", "ssl.keystore.location")
        found = [self._properties[name] for name in names if name in self._properties and security.has_credentials]
        return f"{found[0][0]}, {found[0][1].origin}" if found else ""

    def parsed(self, name: str, kind: Kind[T]) -> T | None:
        """A property's value; None if it is not given, or wrong, which is noted as a problem."""
        text = self._text(name)
        if text is None:
            return None
        try:
            return kind.parse(text.strip())
        except ValueError as error:
            kerberos = "; Kerberos is not supported" if text.strip().upper() == "GSSAPI" else ""
            key, setting = self._properties[name]
            self._problems.append(f"{setting.origin}: {key} = {text.strip()}: {error}{kerberos}")
            return None

    def _sasl(self, protocol: SecurityProtocol) -> SaslCredentials | None:
        if "sasl.jaas.config" not in self._properties:
            # An upstream whose protocol has SASL and lacks credentials has been reported as such.
            if self._upstream.sasl is None and not self._upstream.protocol.has_sasl:
                self._wrong("security.protocol", f"{protocol} needs sasl.jaas.config beside it, or upstream.sasl.*")
            return self._upstream.sasl
        text = self._text("sasl.jaas.config")
        if text is None:
            return None
        mechanism = self.parsed("sasl.mechanism", one_of(SaslMechanism))
        if mechanism is None:
            if "sasl.mechanism" not in self._properties:
                self._wrong("sasl.jaas.config", "needs sasl.mechanism beside it: Kafka's default is Kerberos")
            return None
        return self._attempt("sasl.jaas.config", lambda: jaas_credentials(text, mechanism))

    def _tls(self) -> ClientTls:
        if not any(name.startswith("ssl.") for name in self._properties):
            return self._upstream.tls or ClientTls()
        own = self._own_identity()
        return ClientTls(
            ca_certificates_pem=self._trusted(),
            certificate_chain_pem=own[0] if own else None,
            private_key_pem=own[1] if own else None,
            verify_hostname=self.parsed("ssl.endpoint.identification.algorithm", IDENTIFICATION) is not False,
        )

    def _trusted(self) -> bytes | None:
        inline, location = self._text("ssl.truststore.certificates"), "ssl.truststore.location"
        password = self._text("ssl.truststore.password")
        if inline is not None:
            return self._attempt(
                "ssl.truststore.certificates",
                lambda: ssl_contexts.trusted_certificates(ssl_contexts.inline_pem(inline), password),
            )
        file = self._file(location)
        if file is None:
            return None
        return self._attempt(
            location, lambda: ssl_contexts.trusted_certificates(ssl_contexts.read_material(file), password)
        )

    def _own_identity(self) -> tuple[bytes, bytes] | None:
        chain, location = self._text("ssl.keystore.certificate.chain"), "ssl.keystore.location"
        inline_key, key_password = self._text("ssl.keystore.key") or "", self._text("ssl.key.password")
        if chain is not None:
            return self._attempt(
                "ssl.keystore.certificate.chain",
                lambda: ssl_contexts.identity(
                    ssl_contexts.inline_pem(chain), ssl_contexts.inline_pem(inline_key), key_password
                ),
            )
        file = self._file(location)
        if file is None:
            return None
        return self._attempt(location, lambda: self._store_identity(ssl_contexts.read_material(file)))

    def _store_identity(self, data: bytes) -> tuple[bytes, bytes]:
        password = "ssl.key.password" if ssl_contexts.is_pem(data) else "ssl.keystore.password"
        return ssl_contexts.store_identity(data, self._text(password))

    def _text(self, name: str) -> str | None:
        return self._properties[name][1].text if name in self._properties else None

    def _file(self, name: str) -> Path | None:
        text = self._text(name)
        return None if text is None else self._properties[name][1].folder / text.strip()

    def _attempt(self, name: str, read: Callable[[], T]) -> T | None:
        return attempt(read, lambda reason: self._wrong(name, reason))

    def _wrong(self, name: str, reason: str) -> None:
        if name in self._properties:
            key, setting = self._properties[name]
            self._problems.append(f"{setting.origin}: {key}: {reason}")
        else:
            self._problems.append(f"the metadata topic's client: {name}: {reason}")


class JaasError(Exception):
    """The text is no login module that we can use; the message is the end of a sentence and holds no value."""


def jaas_credentials(text: str, mechanism: SaslMechanism) -> SaslCredentials:
    """Return what a login module gives to a mechanism. Raises JaasError if they do not fit or something is missing."""
    class_name, options = parse_login_module(text)
    mechanisms = _MODULE_MECHANISMS.get(class_name)
    if mechanisms is None:
        kerberos = ": Kerberos is not supported" if class_name.endswith("Krb5LoginModule") else ""
        raise JaasError(f"names the login module {class_name}{kerberos}; PLAIN, SCRAM and OAUTHBEARER are read")
    if mechanism not in mechanisms:
        raise JaasError(f"names {class_name}, which is not for the mechanism {mechanism}")
    if mechanism is SaslMechanism.OAUTHBEARER:
        return SaslCredentials(mechanism=mechanism, options=options)
    if options.get("tokenauth", "false").lower() == "true":
        raise JaasError("asks for a delegation token, which is not supported")
    for option in ("username", "password"):
        if not options.get(option):
            raise JaasError(f"has no {option}")
    return SaslCredentials(mechanism=mechanism, username=options["username"], password=options["password"])


def parse_login_module(text: str) -> tuple[str, Mapping[str, str]]:
    """The one entry of a `sasl.jaas.config`: its class and options. Raises JaasError."""
    if len(text) > JAAS_LENGTH_MAX:
        raise JaasError(f"is longer than {JAAS_LENGTH_MAX} characters")
    tokens = _tokens(text)
    class_name, flag = (_word(tokens, "the login module's class"), _word(tokens, "a control flag"))
    if flag.lower() not in _FLAGS:
        raise JaasError(f"must have one of {', '.join(_FLAGS)} after the class")
    options: dict[str, str] = {}
    while True:
        kind, name = next(tokens, ("end", ""))
        if (kind, name) == ("sign", ";"):
            break
        if kind == "end":
            raise JaasError("must end with ';'")
        if kind == "sign" or next(tokens, None) != ("sign", "="):
            raise JaasError("must hold name=value pairs and end with ';'")
        options[name] = _word(tokens, f"a value of {name}")
    if next(tokens, None) is not None:
        raise JaasError("must hold exactly one login module")
    return class_name, MappingProxyType(options)


def _word(tokens: Iterator[tuple[str, str]], what: str) -> str:
    kind, text = next(tokens, ("end", ""))
    if kind not in ("word", "quoted"):
        raise JaasError(f"lacks {what}")
    return text


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            # Only the place: what stands there may be part of a password that someone forgot to quote.
            raise JaasError(f"has an unquoted sign or an open quote at character {position + 1}")
        position = match.end()
        if match.lastgroup == "quoted":
            yield "quoted", _ESCAPE.sub(_unescape, match[0][1:-1])
        elif match.lastgroup in ("word", "sign"):
            yield match.lastgroup, match[0]


def _unescape(match: re.Match[str]) -> str:
    escaped = match[1]
    return chr(int(escaped, 8)) if escaped[0] in "01234567" else _ESCAPED.get(escaped, escaped)
