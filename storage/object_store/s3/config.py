"""The S3 keys of Aiven's plug-in (docs/formats.md#aiven-configuration), from a broker's configuration to S3Settings.

`config` holds keys without the broker's prefix (`storage.s3.bucket.name`); messages name them with it, as the user
wrote them. Two keys are Tidegate's own: `storage.s3.checksum.mode` and `storage.s3.multipart.upload.threshold`, above
which what is known to be so large is uploaded in parts. Differences from the plug-in: the region may be left out when
there is an endpoint; time-outs bound what boto3 can bound (connecting, and each wait for bytes), since the deadline of
a whole read is the reader's.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from io import BytesIO
from pathlib import Path
from urllib.parse import urlsplit

from storage.errors import StorageConfigError
from storage.object_store.config_keys import CONNECT_TIMEOUT_S, DEFAULT_PREFIX, READ_TIMEOUT_S, StoreKeys, StoreSettings
from storage.object_store.credentials_file import CredentialsFile
from storage.object_store.multipart import PART_BYTES_MAX, PART_BYTES_MIN, SINGLE_PUT_BYTES_MAX
from storage.object_store.s3.errors import BUCKET_KEY, REGION_KEY

# Who we are to S3: keys that stand in the configuration, a file that is read again when it changes, nobody, or None
# for the SDK's own chain.
#
# No secret is in the text form of anything here, nor in a message.
#
# The file is Aiven's (`storage.aws.credentials.file`): Java properties with `aws.access.key.id`,
# `aws.secret.access.key` and perhaps `aws.session.token`, each also under its name with `rsm.config.storage.` before
# it, which wins. The names that AWS' own tools use in theirs (`aws_access_key_id`, …) are taken too.


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


def credentials_file(path: Path, key: str) -> CredentialsFile[StaticCredentials]:
    """The keys of a file. `key` is the configuration key that names it, for messages."""
    return CredentialsFile(path, key, _parsed)


def _parsed(data: bytes) -> StaticCredentials:
    import javaproperties  # for this file alone

    try:
        properties = javaproperties.load(BytesIO(data))
    except ValueError:
        # Without the cause, which quotes the line.
        raise StorageConfigError("is not a properties file") from None
    found = [_named(properties, name) for name in ("access.key.id", "secret.access.key", "session.token")]
    access_key_id, secret_access_key, session_token = found
    if not access_key_id or not secret_access_key:
        raise StorageConfigError("does not hold aws.access.key.id and aws.secret.access.key")
    return StaticCredentials(access_key_id, secret_access_key, session_token or None)


Credentials = StaticCredentials | AnonymousCredentials | CredentialsFile[StaticCredentials] | None
"""None: the SDK's own chain (environment, profile, web identity, container, instance)."""


def _named(properties: dict[str, str], name: str) -> str:
    names = [f"{prefix}aws.{name}" for prefix in _NAME_PREFIXES] + [f"aws_{name.replace('.', '_')}"]
    return next((properties[found].strip() for found in names if properties.get(found, "").strip()), "")


ENDPOINT_KEY = "storage.s3.endpoint.url"
PATH_STYLE_KEY = "storage.s3.path.style.access.enabled"
PART_SIZE_KEY = "storage.s3.multipart.upload.part.size"
MULTIPART_THRESHOLD_KEY = "storage.s3.multipart.upload.threshold"
STORAGE_CLASS_KEY = "storage.s3.storage.class"
CALL_TIMEOUT_KEY = "storage.s3.api.call.timeout"
ATTEMPT_TIMEOUT_KEY = "storage.s3.api.call.attempt.timeout"
LEGACY_MD5_KEY = "storage.s3.legacy.md5.plugin.enabled"
CHECKSUM_MODE_KEY = "storage.s3.checksum.mode"
ACCESS_KEY_ID_KEY = "storage.aws.access.key.id"
SECRET_ACCESS_KEY_KEY = "storage.aws.secret.access.key"
SESSION_TOKEN_KEY = "storage.aws.session.token"
CREDENTIALS_FILE_KEY = "storage.aws.credentials.file"
PROVIDER_CLASS_KEY = "storage.aws.credentials.provider.class"
CERTIFICATE_CHECK_KEY = "storage.aws.certificate.check.enabled"
CHECKSUM_CHECK_KEY = "storage.aws.checksum.check.enabled"

PART_BYTES_DEFAULT = 16 * 1024 * 1024
SINGLE_PUT_BYTES_DEFAULT = 100 * 1024 * 1024
"""As AWS advises (User Guide, "Uploading and copying objects using multipart upload"). The plug-in has one size for
both, 25 MiB; a broker's own part size wins."""

ATTEMPTS_MAX = 1
"""The caller tries again (`storage.object_store.retries`), counts it, and waits as long as the store asks to."""
TIMEOUT_MS_MAX = 3_600_000

_PROVIDER_PACKAGE = "software.amazon.awssdk.auth.credentials."
_ANONYMOUS_PROVIDER = "AnonymousCredentialsProvider"
_STATIC_PROVIDER = "StaticCredentialsProvider"
_CHAIN_PROVIDERS = frozenset(
    {
        "AwsCredentialsProviderChain",
        "ContainerCredentialsProvider",
        "DefaultCredentialsProvider",
        "EnvironmentVariableCredentialsProvider",
        "InstanceProfileCredentialsProvider",
        "ProcessCredentialsProvider",
        "ProfileCredentialsProvider",
        "WebIdentityTokenFileCredentialsProvider",
    }
)
"""What each of them looks at, boto3's own chain looks at too."""


class ChecksumMode(StrEnum):
    """Whether checksums that S3 does not demand are sent and compared; some stores refuse them."""

    WHEN_REQUIRED = "when_required"
    WHEN_SUPPORTED = "when_supported"


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Settings(StoreSettings):
    """How to reach a bucket. Sizes in bytes.

    `path_style`: None lets boto3 choose. `storage_class`: None is the bucket's default. `single_put_bytes_max`: what is
    known to be larger is uploaded in parts; None: what is larger than one part.
    """

    bucket: str
    region: str | None = None
    endpoint_url: str | None = None
    path_style: bool | None = None
    part_bytes: int = PART_BYTES_DEFAULT
    single_put_bytes_max: int | None = None
    storage_class: str | None = None
    credentials: Credentials = None
    certificate_check: bool = True
    request_checksums: ChecksumMode = ChecksumMode.WHEN_REQUIRED
    response_checksums: ChecksumMode = ChecksumMode.WHEN_REQUIRED
    legacy_md5: bool = False
    attempts_max: int = ATTEMPTS_MAX


def s3_settings(config: Mapping[str, str], *, prefix: str = DEFAULT_PREFIX) -> S3Settings:
    """Settings from a broker's keys, `prefix` already stripped from them.

    Raises:
        StorageConfigError: a value is missing or wrong; the message names its key with the prefix, and no secret.
    """
    keys = StoreKeys(config, prefix)
    endpoint_url = keys.endpoint_url(ENDPOINT_KEY)
    if endpoint_url is not None and "_" in (urlsplit(endpoint_url).hostname or ""):
        # botocore would say no more than that the endpoint is invalid, and with a trace.
        raise keys.error(ENDPOINT_KEY, "names a host with an underscore, which S3's library refuses: use another name")
    region = keys.text(REGION_KEY)
    if region is None and endpoint_url is None:
        raise keys.error(REGION_KEY, f"is not set, nor is {prefix}{ENDPOINT_KEY}")
    mode = _checksum_mode(keys)
    validates = keys.boolean(CHECKSUM_CHECK_KEY)
    connect_timeout_s, read_timeout_s = _timeouts(keys)
    return S3Settings(
        bucket=keys.required_text(BUCKET_KEY),
        region=region,
        endpoint_url=endpoint_url,
        path_style=keys.boolean(PATH_STYLE_KEY),
        part_bytes=keys.integer(PART_SIZE_KEY, PART_BYTES_MIN, PART_BYTES_MAX) or PART_BYTES_DEFAULT,
        single_put_bytes_max=keys.integer(MULTIPART_THRESHOLD_KEY, PART_BYTES_MIN, SINGLE_PUT_BYTES_MAX)
        or SINGLE_PUT_BYTES_DEFAULT,
        storage_class=_storage_class(keys),
        credentials=_credentials(keys),
        certificate_check=keys.boolean(CERTIFICATE_CHECK_KEY) is not False,
        request_checksums=mode,
        response_checksums=ChecksumMode.WHEN_SUPPORTED if validates else mode,
        legacy_md5=keys.boolean(LEGACY_MD5_KEY) is True,
        connect_timeout_s=connect_timeout_s,
        read_timeout_s=read_timeout_s,
        proxy=keys.socks_proxy(),
        prefix=prefix,
    )


def _storage_class(keys: StoreKeys) -> str | None:
    text = keys.text(STORAGE_CLASS_KEY)
    if text is None:
        return None
    if re.fullmatch(r"[A-Z_]{1,40}", text.upper()) is None:
        raise keys.error(STORAGE_CLASS_KEY, f"is {text!r}, not the name of a storage class")
    return text.upper()


def _checksum_mode(keys: StoreKeys) -> ChecksumMode:
    text = keys.text(CHECKSUM_MODE_KEY)
    try:
        return ChecksumMode((text or ChecksumMode.WHEN_REQUIRED).lower())
    except ValueError:
        words = f"is {text!r}, not one of {', '.join(ChecksumMode)}"
        raise keys.error(CHECKSUM_MODE_KEY, words) from None


def _timeouts(keys: StoreKeys) -> tuple[float, float]:
    """To connect, and to wait for bytes."""
    call_ms = keys.integer(CALL_TIMEOUT_KEY, 1, 2**63 - 1)
    attempt_ms = keys.integer(ATTEMPT_TIMEOUT_KEY, 1, 2**63 - 1)
    wait_ms = min(attempt_ms or int(READ_TIMEOUT_S * 1000), call_ms or TIMEOUT_MS_MAX, TIMEOUT_MS_MAX)
    return min(CONNECT_TIMEOUT_S, wait_ms / 1000), wait_ms / 1000


def _credentials(keys: StoreKeys) -> Credentials:
    """One way to name them, or none; the plug-in refuses two as well."""
    static = _static_credentials(keys)
    file = keys.text(CREDENTIALS_FILE_KEY)
    provider = keys.text(PROVIDER_CLASS_KEY)
    given = [
        key
        for key, value in (
            (ACCESS_KEY_ID_KEY, static),
            (CREDENTIALS_FILE_KEY, file),
            (PROVIDER_CLASS_KEY, None if provider == _PROVIDER_PACKAGE + _STATIC_PROVIDER else provider),
        )
        if value is not None
    ]
    if len(given) > 1:
        raise keys.error(given[1], f"and {keys.prefix}{given[0]} are both set: one of them names the credentials")
    if file is not None:
        return credentials_file(Path(file), keys.prefix + CREDENTIALS_FILE_KEY)
    return static if static is not None or provider is None else _provided(keys, provider)


def _static_credentials(keys: StoreKeys) -> StaticCredentials | None:
    access_key_id, secret_access_key = keys.text(ACCESS_KEY_ID_KEY), keys.text(SECRET_ACCESS_KEY_KEY)
    session_token = keys.text(SESSION_TOKEN_KEY)
    if access_key_id is None and secret_access_key is None:
        if session_token is not None:
            raise keys.error(SESSION_TOKEN_KEY, f"is set, but {keys.prefix}{ACCESS_KEY_ID_KEY} is not")
        return None
    if access_key_id is None or secret_access_key is None:
        missing = ACCESS_KEY_ID_KEY if access_key_id is None else SECRET_ACCESS_KEY_KEY
        present = SECRET_ACCESS_KEY_KEY if access_key_id is None else ACCESS_KEY_ID_KEY
        raise keys.error(missing, f"is not set, but {keys.prefix}{present} is")
    return StaticCredentials(access_key_id, secret_access_key, session_token)


def _provided(keys: StoreKeys, provider: str) -> AnonymousCredentials | None:
    name = provider.removeprefix(_PROVIDER_PACKAGE)
    if name == _STATIC_PROVIDER:
        raise keys.error(ACCESS_KEY_ID_KEY, f"is not set, as {keys.prefix}{PROVIDER_CLASS_KEY}={provider} demands")
    if name == _ANONYMOUS_PROVIDER:
        return AnonymousCredentials()
    if name not in _CHAIN_PROVIDERS:
        known = ", ".join(sorted({*_CHAIN_PROVIDERS, _ANONYMOUS_PROVIDER}))
        words = f"is {provider}, a Java class without a counterpart here; known are {_PROVIDER_PACKAGE}{{{known}}}"
        raise keys.error(PROVIDER_CLASS_KEY, words)
    return None
