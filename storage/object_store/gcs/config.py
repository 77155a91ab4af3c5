"""The GCS keys of Aiven's plug-in (docs/formats.md#aiven-configuration), from a broker's configuration to GcsSettings.

`config` holds keys without the broker's prefix (`storage.gcs.bucket.name`). As in the plug-in, one of three keys may
name the credentials; none of them means Google's default chain (the environment, gcloud's file, the metadata server),
and `storage.gcs.credentials.default=false` alone means requests without any, for a public bucket or an emulator.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from storage.object_store.config_keys import DEFAULT_PREFIX, StoreKeys, StoreSettings

BUCKET_KEY = "storage.gcs.bucket.name"
ENDPOINT_KEY = "storage.gcs.endpoint.url"
CREDENTIALS_JSON_KEY = "storage.gcs.credentials.json"
CREDENTIALS_PATH_KEY = "storage.gcs.credentials.path"
CREDENTIALS_DEFAULT_KEY = "storage.gcs.credentials.default"
CHUNK_SIZE_KEY = "storage.gcs.resumable.upload.chunk.size"

ENDPOINT_DEFAULT = "https://storage.googleapis.com"
CHUNK_BYTES_UNIT = 256 * 1024
"""A chunk of a resumable upload is a multiple of this (Cloud Storage, "Resumable uploads")."""
CHUNK_BYTES_DEFAULT = 25 * 1024 * 1024
NOT_JSON = "is not a JSON object as Google hands it out"


@dataclass(frozen=True, slots=True)
class JsonCredentials:
    """Google's JSON of a service account, a user or a workload identity: its text, or the file that has it."""

    key: str
    """The configuration key, for messages."""
    text: str | None = field(default=None, repr=False)
    path: Path | None = None


@dataclass(frozen=True, slots=True)
class AnonymousCredentials:
    """Requests without a token."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GcsSettings(StoreSettings):
    """How to reach a bucket. Sizes in bytes.

    `credentials`: None is Google's default chain.
    """

    bucket: str
    endpoint_url: str = ENDPOINT_DEFAULT
    credentials: JsonCredentials | AnonymousCredentials | None = None
    chunk_bytes: int = CHUNK_BYTES_DEFAULT


def gcs_settings(config: Mapping[str, str], *, prefix: str = DEFAULT_PREFIX) -> GcsSettings:
    """Settings from a broker's keys, `prefix` already stripped from them.

    Raises:
        StorageConfigError: a value is missing or wrong; the message names its key with the prefix, and no secret.
    """
    keys = StoreKeys(config, prefix)
    chunk_bytes = keys.integer(CHUNK_SIZE_KEY, CHUNK_BYTES_UNIT, 2**31 - 1) or CHUNK_BYTES_DEFAULT
    if chunk_bytes % CHUNK_BYTES_UNIT:
        raise keys.error(CHUNK_SIZE_KEY, f"is {chunk_bytes}, not a multiple of {CHUNK_BYTES_UNIT} (256 KiB)")
    return GcsSettings(
        bucket=keys.required_text(BUCKET_KEY),
        endpoint_url=keys.endpoint_url(ENDPOINT_KEY) or ENDPOINT_DEFAULT,
        credentials=_credentials(keys),
        chunk_bytes=chunk_bytes,
        proxy=keys.socks_proxy(),
        prefix=prefix,
    )


def _credentials(keys: StoreKeys) -> JsonCredentials | AnonymousCredentials | None:
    text, path = keys.text(CREDENTIALS_JSON_KEY), keys.text(CREDENTIALS_PATH_KEY)
    uses_default = keys.boolean(CREDENTIALS_DEFAULT_KEY)
    given = [key for key, value in ((CREDENTIALS_JSON_KEY, text), (CREDENTIALS_PATH_KEY, path)) if value is not None]
    if uses_default:
        given.append(CREDENTIALS_DEFAULT_KEY)
    if len(given) > 1:
        raise keys.error(given[1], f"and {keys.prefix}{given[0]} are both set: one of them names the credentials")
    if text is not None:
        if not is_json_object(text):
            raise keys.error(CREDENTIALS_JSON_KEY, NOT_JSON)
        return JsonCredentials(keys.prefix + CREDENTIALS_JSON_KEY, text=text)
    if path is not None:
        return JsonCredentials(keys.prefix + CREDENTIALS_PATH_KEY, path=Path(path))
    return AnonymousCredentials() if uses_default is False else None


def is_json_object(text: str | bytes) -> bool:
    """Return whether credentials may be in `text`; nothing of them appears in a message."""
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False
