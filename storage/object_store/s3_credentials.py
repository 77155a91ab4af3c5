"""Who we are to S3: keys that stand in the configuration, a file that is read again when it changes, nobody, or None
for the SDK's own chain.

No secret is in the text form of anything here, nor in a message.

The file is Aiven's (`storage.aws.credentials.file`): Java properties with `aws.access.key.id`,
`aws.secret.access.key` and perhaps `aws.session.token`, each also under its name with `rsm.config.storage.` before it,
which wins. The names that AWS' own tools use in theirs (`aws_access_key_id`, …) are taken too.
"""

import threading
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path

import javaproperties

from storage.errors import StorageConfigError

CREDENTIALS_FILE_BYTES_MAX = 64 * 1024

_NAME_PREFIXES = ("rsm.config.storage.", "storage.", "")


@dataclass(frozen=True, slots=True)
class StaticCredentials:
    """An access key; temporary ones come with a session token."""

    access_key_id: str = field(repr=False)
    secret_access_key: str = field(repr=False)
    session_token: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True)
class AnonymousCredentials:
    """Requests are not signed: a public bucket."""


@dataclass(slots=True, eq=False)
class CredentialsFile:
    """A file whose keys are read again when it changes; whoever rotates them replaces it. Thread-safe.

    `key` is the configuration key that names it, for messages.
    """

    path: Path
    key: str
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _version: tuple[int, int, int] | None = field(default=None, repr=False)
    _current: StaticCredentials | None = field(default=None, repr=False)

    def credentials(self) -> StaticCredentials:
        """What the file holds now. Once it was good, a missing or unfinished file leaves the last good ones in force.

        Raises:
            StorageConfigError: it never was good.
        """
        with self._lock:
            try:
                status = self.path.stat()
                version = (status.st_mtime_ns, status.st_size, status.st_ino)
                if version != self._version:
                    self._current = self._read()
                    self._version = version
            except OSError as error:
                if self._current is None:
                    raise StorageConfigError(f"{self.key}: cannot read {self.path}: {error.strerror}") from error
            except StorageConfigError:
                if self._current is None:
                    raise
            if self._current is None:
                raise AssertionError("either read or raised")
            return self._current

    def _read(self) -> StaticCredentials:
        with self.path.open("rb") as file:
            data = file.read(CREDENTIALS_FILE_BYTES_MAX + 1)
            if len(data) > CREDENTIALS_FILE_BYTES_MAX:
                raise StorageConfigError(f"{self.key}: {self.path} is too large for a file of credentials")
        try:
            properties = javaproperties.load(BytesIO(data))
        except ValueError:
            # Without the cause, which quotes the line.
            raise StorageConfigError(f"{self.key}: {self.path} is not a properties file") from None
        found = [_named(properties, name) for name in ("access.key.id", "secret.access.key", "session.token")]
        access_key_id, secret_access_key, session_token = found
        if not access_key_id or not secret_access_key:
            needed = "aws.access.key.id and aws.secret.access.key"
            raise StorageConfigError(f"{self.key}: {self.path} does not hold {needed}")
        return StaticCredentials(access_key_id, secret_access_key, session_token or None)


Credentials = StaticCredentials | AnonymousCredentials | CredentialsFile | None
"""None: the SDK's own chain (environment, profile, web identity, container, instance)."""


def _named(properties: dict[str, str], name: str) -> str:
    names = [f"{prefix}aws.{name}" for prefix in _NAME_PREFIXES] + [f"aws_{name.replace('.', '_')}"]
    return next((properties[found].strip() for found in names if properties.get(found, "").strip()), "")
