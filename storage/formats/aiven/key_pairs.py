"""The RSA key pairs that wrap data keys (docs/formats.md#aiven-encryption).

    encryption.key.pair.id=<the pair that wraps>
    encryption.key.pairs=<id>,<id>,…
    encryption.key.pairs.<id>.public.key.file=<PEM, SubjectPublicKeyInfo>
    encryption.key.pairs.<id>.private.key.file=<PEM, unencrypted PKCS#8>

A manifest holds its data key as `<id>:<base64>`, wrapped by the pair of that id, which need not be the one that
wraps today. The label of a PEM file does not matter, as with the plugin; its content does, and PKCS#1 is refused as
the plugin refuses it, with the line that converts it. No message and no repr holds key material.

The plugin wraps by RSA-OAEP with SHA3-512, also inside MGF1, and an empty label (Bouncy Castle's
`RSA/NONE/OAEPWithSHA3-512AndMGF1Padding`). `cryptography` refuses that combination, so it only loads and checks the
keys, and PyCryptodome does the padding and the blinded private power. Whatever is wrong with a ciphertext, the error
is the same, word for word: what tells the failures apart decrypts for an attacker (RFC 8017 §7.1.2).
"""

import base64
import re
import shlex
import threading
from collections.abc import Mapping
from io import BytesIO
from pathlib import Path

import javaproperties
import structlog
from Crypto.Cipher import PKCS1_OAEP
from Crypto.Cipher.PKCS1_OAEP import PKCS1OAEP_Cipher
from Crypto.Hash import SHA3_512
from Crypto.PublicKey import RSA
from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_der_private_key,
    load_der_public_key,
)

from storage.errors import CorruptObjectError, RemoteStorageError, StorageConfigError
from storage.formats.aiven.cipher import DATA_KEY_BYTES
from storage.limited_files import UnreadableFileError, read_limited
from storage.plugin_keys import KEY_RING_FILE_KEY

ACTIVE_ID_KEY = "encryption.key.pair.id"
PAIRS_KEY = "encryption.key.pairs"
DEFAULT_PREFIX = "rsm.config."
"""What a broker's file has before each key, for messages."""

MODULUS_BITS_MIN = 8 * (2 * SHA3_512.digest_size + 2 + DATA_KEY_BYTES)
"""1296: a shorter modulus holds no data key beside OAEP's two hashes and two bytes. The plugin finds that out at its
first copy."""

DECRYPTION_ERROR = "does not decrypt with this private key: the text is damaged, or was made with another public key"

KEY_FILE_BYTES_MAX = 64 * 1024

_log = structlog.get_logger(__name__)
_KEY_ID_SHOWN_MAX = 100
_PEM = re.compile(r"-----BEGIN [^\n-]*-----(?P<body>.*?)-----END [^\n-]*-----", re.DOTALL)


class KeyRing:
    """All configured pairs, and which of them wraps new data keys. Thread-safe: nothing changes after construction but
    the blinding of the private power, which has a lock.

    Args:
        config: the manager's own keys, prefix stripped.
        prefix: what the broker's file has before each key, for messages.

    Raises:
        StorageConfigError: a key is missing, a file cannot be read or is no such key, or two files are not a pair;
            the message names key and file.
    """

    def __init__(self, config: Mapping[str, str], *, prefix: str = DEFAULT_PREFIX) -> None:
        self._pairs_key = prefix + PAIRS_KEY
        key_ids = [key_id for key_id in re.split(r"\s*,\s*", config.get(PAIRS_KEY, "").strip()) if key_id]
        if not key_ids:
            raise StorageConfigError(f"{self._pairs_key} is not set")
        for key_id in key_ids:
            if ":" in key_id:
                raise StorageConfigError(f"{self._pairs_key} holds {key_id!r}: no id may contain a colon")
        active_id = config.get(ACTIVE_ID_KEY, "").strip() or None
        if active_id is not None and active_id not in key_ids:
            raise StorageConfigError(f"{prefix}{ACTIVE_ID_KEY}={active_id} is not listed in {self._pairs_key}")
        self._active_id = active_id
        self._ciphers = {key_id: _private_cipher(config, key_id, prefix) for key_id in key_ids}

    @property
    def active_key_id(self) -> str | None:
        """The id of the pair that wraps; None where none is configured: reading needs none."""
        return self._active_id

    def __repr__(self) -> str:
        return f"KeyRing({', '.join(sorted(self._ciphers))}; active: {self._active_id})"

    def unwrap(self, data_key_text: str) -> bytes:
        """The 32-byte data key of a manifest's `dataKey`.

        Raises:
            CorruptObjectError: not `<id>:<base64>`, does not decrypt, or is not 32 bytes long.
            RemoteStorageError: no pair of that id is configured.
        """
        key_id, ciphertext = _parse_data_key(data_key_text)
        cipher = self._ciphers.get(key_id)
        shown_id = key_id if len(key_id) <= _KEY_ID_SHOWN_MAX else f"{key_id[:_KEY_ID_SHOWN_MAX]}…"
        if cipher is None:
            raise RemoteStorageError(
                f"the data key was wrapped by key pair {shown_id!r}, not among {self._pairs_key}: add it there"
            )
        try:
            data_key = cipher.decrypt(ciphertext)
        except ValueError:
            raise CorruptObjectError(f"the data key wrapped by key pair {shown_id!r} {DECRYPTION_ERROR}") from None
        if len(data_key) != DATA_KEY_BYTES:
            raise CorruptObjectError(
                f"the data key wrapped by key pair {shown_id!r} has {len(data_key)} bytes, not {DATA_KEY_BYTES}"
            )
        return data_key

    def wrap(self, data_key: bytes) -> str:
        """A manifest's `dataKey` for a data key, by the active pair.

        Raises:
            StorageConfigError: none is active.
        """
        if self._active_id is None:
            prefix = self._pairs_key.removesuffix(PAIRS_KEY)
            raise StorageConfigError(f"{prefix}{ACTIVE_ID_KEY} is not set: no key pair wraps data keys")
        ciphertext = self._ciphers[self._active_id].encrypt(data_key)
        return f"{self._active_id}:{base64.b64encode(ciphertext).decode('ascii')}"

    def wraps(self, data_key_text: str) -> bool:
        """Return whether a manifest's `dataKey` was wrapped by the pair that is active now."""
        return self._active_id is not None and data_key_text.startswith(f"{self._active_id}:")


KEY_RING_FILE_BYTES_MAX = 1024 * 1024


class KeyRingFile:
    """A properties file that holds the `encryption.key.` keys, with or without the broker's prefix, and is read again
    when it has changed: a new pair is taken up, and becomes the active one, without a restart. Thread-safe.

    Raises:
        StorageConfigError: it cannot be read or holds no good key ring. Once it did, the last good one stays in force,
            and the log says why.
    """

    def __init__(self, path: Path, *, prefix: str = DEFAULT_PREFIX) -> None:
        self._path = path
        self._prefix = prefix
        self._lock = threading.Lock()
        self._version = self._seen()
        self._ring = self._read()

    def current(self) -> KeyRing:
        """Return what the file holds now."""
        with self._lock:
            version = self._seen()
            if version != self._version:
                self._version = version
                try:
                    self._ring = self._read()
                    _log.info("key_ring_read_again", file=str(self._path), active=self._ring.active_key_id)
                except StorageConfigError as error:
                    _log.warning("key_ring_not_read", file=str(self._path), reason=str(error))
            return self._ring

    def _seen(self) -> tuple[int, int, int] | None:
        try:
            status = self._path.stat()
        except OSError:
            return None  # _read says why, if it matters
        return status.st_mtime_ns, status.st_size, status.st_ino

    def _read(self) -> KeyRing:
        try:
            return KeyRing(key_ring_keys(self._path, prefix=self._prefix), prefix=self._prefix)
        except StorageConfigError as error:
            raise StorageConfigError(f"{self._prefix}{KEY_RING_FILE_KEY}={self._path}: {error}") from error


def key_ring_keys(path: Path, *, prefix: str = DEFAULT_PREFIX) -> dict[str, str]:
    """Return what a key ring file says, without the broker's prefix.

    Raises:
        StorageConfigError: it cannot be read, or is no properties file.
    """
    try:
        properties = javaproperties.load(BytesIO(read_limited(path, KEY_RING_FILE_BYTES_MAX)))
    except UnreadableFileError as error:
        raise StorageConfigError(f"it {error}") from error
    except ValueError:
        # Without the cause, which quotes the line.
        raise StorageConfigError("it is not a properties file") from None
    found = {key.removeprefix(prefix): value for key, value in properties.items()}
    return {key: value for key, value in found.items() if key.startswith("encryption.key.")}


def has_key_pairs(config: Mapping[str, str]) -> bool:
    """Return whether the configuration lists key pairs, used for new segments or not."""
    return bool(config.get(PAIRS_KEY, "").strip())


def _parse_data_key(text: str) -> tuple[str, bytes]:
    key_id, colon, encoded = text.partition(":")
    if not colon or not key_id.strip() or not encoded or ":" in encoded:
        raise CorruptObjectError("the data key is not <key pair id>:<base64>")
    try:
        return key_id, base64.b64decode(encoded, validate=True)
    except ValueError:
        raise CorruptObjectError("the data key is not valid base64") from None


def _private_cipher(config: Mapping[str, str], key_id: str, prefix: str) -> PKCS1OAEP_Cipher:
    """Return what decrypts by the pair's private key, and wraps by what that knows of the public one.

    A public key that is there is checked to belong to it; who only reads need not have been given one.
    """
    public_name, private_name = (f"{PAIRS_KEY}.{key_id}.{part}.key.file" for part in ("public", "private"))
    private_key = _load_private_key(*_read_pem(config, private_name, prefix))
    public_path = config.get(public_name, "").strip()
    if public_path and Path(public_path).exists():
        given = _load_public_key(*_read_pem(config, public_name, prefix))
        if private_key.public_key().public_numbers() != given.public_numbers():
            raise StorageConfigError(f"{prefix}{private_name} is not the private key of {prefix}{public_name}")
    if private_key.key_size < MODULUS_BITS_MIN:
        raise StorageConfigError(
            f"{prefix}{private_name}: an RSA key of {private_key.key_size} bits is too small to wrap a data key: "
            f"take 2048 or more, at least {MODULUS_BITS_MIN}"
        )
    der = private_key.private_bytes(Encoding.DER, PrivateFormat.PKCS8, NoEncryption())
    return PKCS1_OAEP.new(RSA.import_key(der), hashAlgo=SHA3_512)


def _read_pem(config: Mapping[str, str], name: str, prefix: str) -> tuple[bytes, str, str]:
    """The DER inside a PEM file, how messages name it, and its path."""
    path_text = config.get(name, "").strip()
    if not path_text:
        raise StorageConfigError(f"{prefix}{name} is not set")
    shown = f"{prefix}{name}={path_text}"
    try:
        content = read_limited(Path(path_text), KEY_FILE_BYTES_MAX)
    except UnreadableFileError as error:
        raise StorageConfigError(f"{shown}: it {error}") from error
    match = _PEM.search(content.decode("ascii", errors="replace"))
    if match is None:
        raise StorageConfigError(f"{shown}: not a PEM file")
    try:
        der = base64.b64decode("".join(match["body"].split()), validate=True)
    except ValueError:
        # Headers are no base64: an old format's way to say that a password is needed.
        raise StorageConfigError(
            _converted(shown, "not base64 inside PEM, or protected by a password", "pkcs8 -topk8 -nocrypt", path_text)
        ) from None
    return der, shown, path_text


def _load_private_key(der: bytes, shown: str, path_text: str) -> RSAPrivateKey:
    to_pkcs8 = "pkcs8 -topk8 -nocrypt"
    try:
        key = load_der_private_key(der, password=None)
    except TypeError:
        raise StorageConfigError(_converted(shown, "protected by a password", to_pkcs8, path_text)) from None
    except (ValueError, UnsupportedAlgorithm):
        # Without a cause: a parser's message might quote what it could not read.
        raise StorageConfigError(f"{shown}: not an unencrypted PKCS#8 private key") from None
    if not isinstance(key, RSAPrivateKey):
        raise StorageConfigError(f"{shown}: not an RSA key")
    # DER has one encoding for a value, so that equality tells the format.
    if der == key.private_bytes(Encoding.DER, PrivateFormat.TraditionalOpenSSL, NoEncryption()):
        raise StorageConfigError(_converted(shown, "PKCS#1, which the plugin does not take", to_pkcs8, path_text))
    return key


def _load_public_key(der: bytes, shown: str, path_text: str) -> RSAPublicKey:
    try:
        key = load_der_public_key(der)
    except (ValueError, UnsupportedAlgorithm):
        raise StorageConfigError(f"{shown}: not a SubjectPublicKeyInfo public key") from None
    if not isinstance(key, RSAPublicKey):
        raise StorageConfigError(f"{shown}: not an RSA key")
    if der == key.public_bytes(Encoding.DER, PublicFormat.PKCS1):
        to_public_key_info = "rsa -RSAPublicKey_in -pubout"
        raise StorageConfigError(
            _converted(shown, "PKCS#1, which the plugin does not take", to_public_key_info, path_text)
        )
    return key


def _converted(shown: str, what: str, command: str, path_text: str) -> str:
    path = shlex.quote(path_text)
    return f"{shown}: {what}; convert it: openssl {command} -in {path} -out {shlex.quote(path_text + '.converted')}"


KAFKA_FORMAT, ICEBERG_FORMAT = "kafka", "iceberg"
