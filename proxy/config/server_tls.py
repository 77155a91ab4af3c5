"""Who Tidegate is to its clients: `proxy.tls.*`."""

from proxy.config import keys as table
from proxy.config.model import ClientAuth, ServerTls
from storage.config import tls_material
from storage.config.values import Values


def server_tls(values: Values) -> ServerTls | None:
    """TLS towards clients from `proxy.tls.*`; None when no certificate is set."""
    certificate = values.optional(table.PROXY_TLS_CERTIFICATE_FILE)
    client_auth, client_ca = values.of(table.PROXY_TLS_CLIENT_AUTH), values.optional(table.PROXY_TLS_CLIENT_CA_FILE)
    if certificate is None:
        for key in (table.PROXY_TLS_KEY_FILE, table.PROXY_TLS_CLIENT_CA_FILE, table.PROXY_TLS_CLIENT_AUTH):
            if values.is_set(key) and not values.is_set(table.PROXY_TLS_CERTIFICATE_FILE):
                values.wrong(key, f"needs {table.PROXY_TLS_CERTIFICATE_FILE.name}")
        return None
    if client_auth is not ClientAuth.NONE and client_ca is None:
        values.wrong(table.PROXY_TLS_CLIENT_AUTH, f"needs {table.PROXY_TLS_CLIENT_CA_FILE.name}")
    key_file = values.optional(table.PROXY_TLS_KEY_FILE) or certificate
    own = tls_material.attempt(
        lambda: tls_material.identity(
            tls_material.read_material(certificate),
            tls_material.read_material(key_file),
            values.optional(table.PROXY_TLS_KEY_PASSWORD),
        ),
        lambda reason: values.wrong(table.PROXY_TLS_CERTIFICATE_FILE, reason),
    )
    trusted = None
    if client_ca is not None:
        trusted = tls_material.attempt(
            lambda: tls_material.trusted_certificates(tls_material.read_material(client_ca), None),
            lambda reason: values.wrong(table.PROXY_TLS_CLIENT_CA_FILE, reason),
        )
    if own is None:
        return None
    return ServerTls(
        certificate_chain_pem=own[0],
        private_key_pem=own[1],
        client_ca_certificates_pem=trusted,
        client_auth=client_auth,
    )
