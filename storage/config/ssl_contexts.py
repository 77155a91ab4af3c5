"""Certificates and keys out of PEM and PKCS#12, from files or inline, as plain PEM; and OpenSSL's contexts out of that.

- What a file is, its first bytes say, not its name and not `ssl.keystore.type`: Java reads PKCS#12 under type JKS too.
- JKS and JCEKS have no reader outside Java: refused with the keytool line that converts the store.
- A key must belong to the certificate that stands first: found here, not at the first handshake.
- Python's ssl reads a private key from a file only. It gets one of ours: in a folder that only we may enter, encrypted
  with a password made for this one call, and gone when the call returns. The plain key never touches a disk.
"""

import re
import secrets
import shlex
import ssl
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Final

from storage.config.model import ClientTls
from storage.limited_files import UnreadableFileError, read_limited

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12KeyAndCertificates
    from cryptography.x509 import Certificate

FILE_BYTES_MAX: Final = 4 * 1024 * 1024  # the system's whole CA bundle is 220 KiB
_JAVA_STORES: Final = {b"\xfe\xed\xfe\xed": "JKS", b"\xce\xce\xce\xce": "JCEKS"}

# Kafka's inline PEM may have lost its line ends to a properties file's continuation lines.
_PEM_BLOCK = re.compile(r"-----BEGIN ([A-Z0-9 ]+)-----(.*?)-----END \1-----", re.DOTALL)


class TlsMaterialError(Exception):
    """A store, certificate or key cannot be used; the message is the end of a sentence and holds no secret."""


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


def read_material(path: Path) -> bytes:
    """A file's bytes. Raises TlsMaterialError if it cannot be read, is too large, or is a Java-only store."""
    try:
        data = read_limited(path, FILE_BYTES_MAX)
    except UnreadableFileError as error:
        raise TlsMaterialError(f"{path} {error}") from error
    store_type = _JAVA_STORES.get(data[:4])
    if store_type is not None:
        raise TlsMaterialError(
            f"{path} is a {store_type} store, which only Java reads; convert it: keytool -importkeystore "
            f"-srckeystore {shlex.quote(str(path))} -srcstoretype {store_type} "
            f"-destkeystore {shlex.quote(str(path.with_suffix('.p12')))} -deststoretype PKCS12"
        )
    return data


def inline_pem(text: str) -> bytes:
    """PEM given as a value: its blocks with proper line ends again, whatever stood between them dropped."""
    blocks = []
    for label, body in _PEM_BLOCK.findall(text):
        encoded = re.sub(r"\s+", "", body)
        lines = "\n".join(encoded[start : start + 64] for start in range(0, len(encoded), 64))
        blocks.append(f"-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n")
    return "".join(blocks).encode("ascii", "replace")


def trusted_certificates(data: bytes, password: str | None) -> bytes:
    """The certificates of a PEM file or a PKCS#12 trust store, as PEM. Raises TlsMaterialError."""
    if is_pem(data):
        return _to_pem(_pem_certificates(data))
    store = _pkcs12(data, password)
    certificates = [entry.certificate for entry in store.additional_certs]
    if store.cert is not None:
        certificates.insert(0, store.cert.certificate)
    if not certificates:
        raise TlsMaterialError("holds no certificate")
    return _to_pem(certificates)


def identity(chain: bytes, key: bytes, password: str | None) -> tuple[bytes, bytes]:
    """Certificate chain and private key (unencrypted PKCS#8), both PEM, out of PEM. Raises TlsMaterialError."""
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives import serialization

    certificates = _pem_certificates(chain)
    try:
        private_key = serialization.load_pem_private_key(key, password.encode() if password is not None else None)
    except TypeError as error:
        # cryptography's word for both: a password for a plain key, and none for an encrypted one.
        raise TlsMaterialError("the key is encrypted and has no password, or has one and is not") from error
    except (ValueError, UnsupportedAlgorithm) as error:
        raise TlsMaterialError("holds no readable private key, or its password is wrong") from error
    return _matching(certificates, private_key)


def file_identity(chain: Path, key: Path | None, password: str | None) -> tuple[bytes, bytes]:
    """`identity` out of files; without `key` the chain's file holds it too. Raises TlsMaterialError."""
    return identity(read_material(chain), read_material(key or chain), password)


def store_identity(data: bytes, password: str | None) -> tuple[bytes, bytes]:
    """Certificate chain and private key out of a key store: PKCS#12, or Kafka's PEM with both in one file."""
    if is_pem(data):
        return identity(data, data, password)
    store = _pkcs12(data, password)
    if store.key is None or store.cert is None:
        raise TlsMaterialError("holds no private key with its certificate")
    return _matching([store.cert.certificate, *(entry.certificate for entry in store.additional_certs)], store.key)


def _matching(certificates: "list[Certificate]", private_key: object) -> tuple[bytes, bytes]:
    from cryptography.hazmat.primitives.asymmetric import ec, ed448, ed25519, rsa
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    if not isinstance(
        private_key, rsa.RSAPrivateKey | ec.EllipticCurvePrivateKey | ed25519.Ed25519PrivateKey | ed448.Ed448PrivateKey
    ):
        raise TlsMaterialError("holds a private key of a kind that TLS does not use")
    if private_key.public_key() != certificates[0].public_key():
        raise TlsMaterialError("the private key does not belong to the first certificate")
    return _to_pem(certificates), private_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _pem_certificates(data: bytes) -> "list[Certificate]":
    from cryptography.x509 import load_pem_x509_certificates

    try:
        return load_pem_x509_certificates(data)
    except ValueError as error:
        raise TlsMaterialError("holds no readable PEM certificate") from error


def _pkcs12(data: bytes, password: str | None) -> "PKCS12KeyAndCertificates":
    from cryptography.exceptions import UnsupportedAlgorithm
    from cryptography.hazmat.primitives.serialization.pkcs12 import load_pkcs12

    try:
        return load_pkcs12(data, password.encode() if password is not None else None)
    except (ValueError, TypeError, UnsupportedAlgorithm) as error:
        raise TlsMaterialError("is neither PEM nor a PKCS#12 store that its password opens") from error


def is_pem(data: bytes) -> bool:
    """Return whether the bytes are PEM rather than a store."""
    return b"-----BEGIN " in data


def _to_pem(certificates: "list[Certificate]") -> bytes:
    from cryptography.hazmat.primitives.serialization import Encoding

    return b"".join(certificate.public_bytes(Encoding.PEM) for certificate in certificates)
