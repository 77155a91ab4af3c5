"""The OpenSSL context towards clients; the one towards brokers is in `storage.config.ssl_contexts`."""

import ssl

from proxy.config.model import ClientAuth, ServerTls
from storage.config.ssl_contexts import load_identity

_VERIFY_MODES = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}


def server_ssl_context(tls: ServerTls) -> ssl.SSLContext:
    """For connections from clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.client_ca_certificates_pem is not None:
        context.load_verify_locations(cadata=tls.client_ca_certificates_pem.decode("ascii"))
    context.verify_mode = _VERIFY_MODES[tls.client_auth]
    load_identity(context, tls.certificate_chain_pem, tls.private_key_pem)
    return context
