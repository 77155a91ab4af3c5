"""OpenSSL contexts out of the configuration's PEM.

Python's ssl reads a private key from a file only. It gets one of ours: in a folder that only we may enter, encrypted
with a password made for this one call, and gone when the call returns. The plain key never touches a disk.
"""

import secrets
import ssl
import tempfile
from pathlib import Path

from storage.config.model import ClientTls


def client_ssl_context(tls: ClientTls) -> ssl.SSLContext:
    """For connections to brokers; use it with `server_hostname`, also when the name is not checked (SNI)."""
    context = ssl.create_default_context(
        ssl.Purpose.SERVER_AUTH,
        cadata=None if tls.ca_certificates_pem is None else tls.ca_certificates_pem.decode("ascii"),
    )
    context.check_hostname = tls.verify_hostname
    if tls.certificate_chain_pem is not None and tls.private_key_pem is not None:
        load_identity(context, tls.certificate_chain_pem, tls.private_key_pem)
    return context


def load_identity(context: ssl.SSLContext, chain_pem: bytes, key_pem: bytes) -> None:
    """Give a context its own certificate chain and key, both PEM, the key unencrypted PKCS#8."""
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
