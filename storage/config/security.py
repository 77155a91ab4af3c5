"""Who Tidegate is to the brokers, from two spellings of the same thing.

`upstream.*` is spelt as librdkafka spells it; the metadata topic's clients (`remote.log.metadata.common.client.*` and
`.consumer.*`) as Java's clients do. The second (`java_security`) falls back to the first part by part: a broker's file
often holds only the password there, since the broker itself knows listener and protocol.
"""

from typing import Final

from storage.config import keys as table
from storage.config import tls_material
from storage.config.model import ClientSecurity, ClientTls, SaslCredentials
from storage.config.values import Values

UPSTREAM_SASL_KEYS: Final = (
    table.UPSTREAM_SASL_MECHANISM,
    table.UPSTREAM_SASL_USERNAME,
    table.UPSTREAM_SASL_PASSWORD,
)
UPSTREAM_SSL_KEYS: Final = (
    table.UPSTREAM_SSL_CA_LOCATION,
    table.UPSTREAM_SSL_CERTIFICATE_LOCATION,
    table.UPSTREAM_SSL_KEYSTORE_LOCATION,
)


def upstream_security(values: Values) -> ClientSecurity:
    """Tidegate's own identity from `upstream.*`. Key by key, what it lacks or contradicts is noted as a problem."""
    protocol = values.of(table.UPSTREAM_SECURITY_PROTOCOL)
    unused = (() if protocol.has_sasl else UPSTREAM_SASL_KEYS) + (() if protocol.has_tls else UPSTREAM_SSL_KEYS)
    for key in unused:
        if values.is_set(key):
            values.warnings.append(f"{key.name} has no effect: {table.UPSTREAM_SECURITY_PROTOCOL.name} is {protocol}")
    return ClientSecurity(
        protocol=protocol,
        tls=_upstream_tls(values) if protocol.has_tls else None,
        sasl=_upstream_sasl(values) if protocol.has_sasl else None,
    )


def _upstream_sasl(values: Values) -> SaslCredentials | None:
    for key in UPSTREAM_SASL_KEYS:
        if not values.is_set(key):
            values.wrong(key, f"is required: {table.UPSTREAM_SECURITY_PROTOCOL.name} has SASL")
    mechanism = values.optional(table.UPSTREAM_SASL_MECHANISM)
    username, password = values.optional(table.UPSTREAM_SASL_USERNAME), values.optional(table.UPSTREAM_SASL_PASSWORD)
    if mechanism is None or username is None or password is None:
        return None
    return SaslCredentials(mechanism=mechanism, username=username, password=password)


def _upstream_tls(values: Values) -> ClientTls:
    ca, certificate = values.optional(table.UPSTREAM_SSL_CA_LOCATION), table.UPSTREAM_SSL_CERTIFICATE_LOCATION
    store, chain = values.optional(table.UPSTREAM_SSL_KEYSTORE_LOCATION), values.optional(certificate)
    own: tuple[bytes, bytes] | None = None
    if store is not None and chain is not None:
        values.wrong(certificate, f"{table.UPSTREAM_SSL_KEYSTORE_LOCATION.name} is set too: keep one of them")
    elif store is not None:
        password = values.optional(table.UPSTREAM_SSL_KEYSTORE_PASSWORD)
        own = tls_material.attempt(
            lambda: tls_material.store_identity(tls_material.read_material(store), password),
            lambda reason: values.wrong(table.UPSTREAM_SSL_KEYSTORE_LOCATION, reason),
        )
    elif chain is not None:
        key_file = values.optional(table.UPSTREAM_SSL_KEY_LOCATION) or chain
        password = values.optional(table.UPSTREAM_SSL_KEY_PASSWORD)
        own = tls_material.attempt(
            lambda: tls_material.identity(
                tls_material.read_material(chain), tls_material.read_material(key_file), password
            ),
            lambda reason: values.wrong(certificate, reason),
        )
    elif values.is_set(table.UPSTREAM_SSL_KEY_LOCATION):
        values.wrong(table.UPSTREAM_SSL_KEY_LOCATION, f"needs {certificate.name}")
    trusted = None
    if ca is not None:
        trusted = tls_material.attempt(
            lambda: tls_material.trusted_certificates(tls_material.read_material(ca), None),
            lambda reason: values.wrong(table.UPSTREAM_SSL_CA_LOCATION, reason),
        )
    return ClientTls(
        ca_certificates_pem=trusted,
        certificate_chain_pem=own[0] if own else None,
        private_key_pem=own[1] if own else None,
        verify_hostname=values.of(table.UPSTREAM_SSL_IDENTIFICATION),
    )
