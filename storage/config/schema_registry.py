"""Where schemas of records are, and as whom they are asked for: `schema.registry.*`.

The keys are those of Confluent's clients behind one prefix. Only the Spark source asks a registry; `serve` checks these
keys and has no use for them. An address with a user in it is refused: addresses show in messages.
"""

from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import urlsplit

from storage.config import ssl_contexts
from storage.config.keys import key
from storage.config.model import ClientTls
from storage.config.security import attempt, trusted
from storage.config.sources import Values
from storage.config.value_kinds import FILE, IDENTIFICATION, TEXT, Kind, optional

PREFIX = "schema.registry."
_CERTIFICATE, _KEY = PREFIX + "ssl.certificate.location", PREFIX + "ssl.key.location"
_USER, _TOKEN = PREFIX + "basic.auth.user.info", PREFIX + "bearer.auth.token"


def parse_registry_url(value: str) -> str:
    """An address without its last slash. Raises ValueError, which never repeats the address."""
    try:
        parts = urlsplit(value)
        is_right = parts.scheme in ("http", "https") and bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        is_right, parts = False, urlsplit("")
    if parts.username is not None or parts.password is not None:
        raise ValueError(f"must not hold a user: {_USER} of the properties file is for that")
    if not is_right or parts.query or parts.fragment:
        raise ValueError("must be an address that begins with http:// or https://")
    return value.rstrip("/")


def _parse_user_info(value: str) -> str:
    if ":" not in value:
        raise ValueError("must be user:password")
    return value


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRegistryKeys:
    """What `SchemaRegistryConfig` is made of."""

    url: str | None = key(
        PREFIX + "url",
        optional(Kind("http:// or https:// address", parse_registry_url)),
        "Where records' schemas are; the Spark source's option `schemaRegistry` goes before it.",
        section="Schema registry: for the Spark source, named as Confluent's clients name it",
        # Somebody may write a user into it, and that is refused with a message that shows a key's value.
        secret=True,
    )
    user_info: str | None = key(
        _USER, optional(Kind("user:password", _parse_user_info)), "Its user and password.", secret=True
    )
    token: str | None = key(_TOKEN, optional(TEXT), "Or a bearer token.", secret=True)
    ssl_ca: Path | None = key(
        PREFIX + "ssl.ca.location", optional(FILE), "PEM file of CA certificates; unset: the system's."
    )
    ssl_certificate: Path | None = key(
        _CERTIFICATE, optional(FILE), "PEM file of the client's own certificate and its chain."
    )
    ssl_key: Path | None = key(_KEY, optional(FILE), "PEM file of its private key; unset: the certificate's file.")
    ssl_key_password: str | None = key(
        PREFIX + "ssl.key.password", optional(TEXT), "The private key's password.", secret=True
    )
    ssl_verify_hostname: bool = key(
        PREFIX + "ssl.endpoint.identification.algorithm",
        IDENTIFICATION,
        "`none` checks the registry's certificate but not its host name.",
        default="https",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemaRegistryConfig:
    """A registry's address, and who asks. Without an address there is none, unless somebody names one."""

    url: str | None = None
    user_info: str | None = field(default=None, repr=False)
    """`user:password`."""
    token: str | None = field(default=None, repr=False)
    tls: ClientTls = field(default_factory=ClientTls)


def schema_registry_config(values: Values) -> SchemaRegistryConfig:
    """The registry of `schema.registry.*`. Key by key, what it lacks or contradicts is noted as a problem."""
    given, own = values.group(SchemaRegistryKeys), None
    if given.user_info is not None and given.token is not None:
        values.wrong(_TOKEN, f"{_USER} is set too: keep one of them")
    chain = given.ssl_certificate
    if chain is not None:
        own = attempt(
            lambda: ssl_contexts.file_identity(chain, given.ssl_key, given.ssl_key_password),
            lambda reason: values.wrong(_CERTIFICATE, reason),
        )
    elif values.is_set(_KEY):
        values.wrong(_KEY, f"needs {_CERTIFICATE}")
    tls = ClientTls(
        ca_certificates_pem=trusted(values, PREFIX + "ssl.ca.location"),
        certificate_chain_pem=own[0] if own else None,
        private_key_pem=own[1] if own else None,
        verify_hostname=given.ssl_verify_hostname,
    )
    return SchemaRegistryConfig(url=given.url, user_info=given.user_info, token=given.token, tls=tls)
