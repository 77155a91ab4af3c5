"""Certificates for `localhost`, 127.0.0.1 and other names, made when a test asks."""

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

START = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)


@dataclass(frozen=True, slots=True)
class Made:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    @property
    def key_pem(self) -> bytes:
        return self.key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )


def make_certificate(
    common_name: str,
    names: Sequence[str] = (),
    *,
    issuer: Made | None = None,
    is_authority: bool = True,
    days: float = 36_500,
) -> Made:
    """Valid from 2020 on.

    Args:
        names: hosts and addresses; none: it has no subject alternative name.
        issuer: None: it is its own.
    """
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, common_name)])
    builder = (
        x509.CertificateBuilder()
        .subject_name(name)
        .issuer_name(name if issuer is None else issuer.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(START)
        .not_valid_after(START + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=is_authority, path_length=None), critical=True)
    )
    if names:
        builder = builder.add_extension(x509.SubjectAlternativeName([*map(_general_name, names)]), critical=False)
    return Made(builder.sign(key if issuer is None else issuer.key, hashes.SHA256()), key)


def days_from_2020(days_from_now: float) -> float:
    """Return `days` of a certificate that ends so many days from now."""
    return (datetime.datetime.now(datetime.UTC) - START).days + days_from_now


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def server_certificate(folder: Path, *names: str, years: int = 100) -> tuple[Path, Path]:
    """(certificate, key) as PEM files in `folder`; the certificate is its own authority."""
    made = make_certificate("localhost", ["127.0.0.1", "localhost", *names], days=365 * years)
    certificate_file, key_file = folder / "server.pem", folder / "server.key"
    certificate_file.write_bytes(made.pem)
    key_file.write_bytes(made.key_pem)
    return certificate_file, key_file
