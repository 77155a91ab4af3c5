"""OpenSSL contexts out of the configuration's PEM.

Python's ssl reads a private key from a file only. It gets one of ours: in a folder that only we may enter, encrypted
with a password made for this one call, and gone when the call returns. The plain key never touches a disk.
"""

import secrets
import ssl
import tempfile
from pathlib import Path

from proxy.config.model import ClientAuth, ClientTls, ServerTls

_VERIFY_MODES = {
    ClientAuth.NONE: ssl.CERT_NONE,
    ClientAuth.REQUESTED: ssl.CERT_OPTIONAL,
    ClientAuth.REQUIRED: ssl.CERT_REQUIRED,
}


def client_ssl_context(tls: ClientTls) -> ssl.SSLContext:
    """For connections to brokers; use it with `server_hostname`, also when the name is not checked (SNI)."""
    context = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cadata=_text(tls.ca_certificates_pem))
    context.check_hostname = tls.verify_hostname
    if tls.certificate_chain_pem is not None and tls.private_key_pem is not None:
        _load_identity(context, tls.certificate_chain_pem, tls.private_key_pem)
    return context


def server_ssl_context(tls: ServerTls) -> ssl.SSLContext:
    """For connections from clients."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if tls.client_ca_certificates_pem is not None:
        context.load_verify_locations(cadata=_text(tls.client_ca_certificates_pem))
    context.verify_mode = _VERIFY_MODES[tls.client_auth]
    _load_identity(context, tls.certificate_chain_pem, tls.private_key_pem)
    return context


def _text(pem: bytes | None) -> str | None:
    return None if pem is None else pem.decode("ascii")


def _load_identity(context: ssl.SSLContext, chain_pem: bytes, key_pem: bytes) -> None:
    from cryptography.hazmat.primitives.serialization import (
        BestAvailableEncryption,
        Encoding,
        PrivateFormat,
        load_pem_private_key,
    )

    password = secrets.token_hex(32)
    key = load_pem_private_key(key_pem, None)
    encrypted = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(password.encode()))
    with tempfile.TemporaryDirectory(prefix="tidegate-") as folder:
        file = Path(folder) / "identity.pem"
        file.write_bytes(encrypted + chain_pem)
        context.load_cert_chain(file, password=password)
