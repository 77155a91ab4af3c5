"""The Azure keys of Aiven's plug-in (docs/formats.md#aiven-configuration), from a broker's file to AzureSettings.

`config` holds keys without the broker's prefix (`storage.azure.container.name`). As in the plug-in, a connection string
stands alone; without one the account's name gives the endpoint unless that is set, and an account key goes before a
SAS token. With neither, Azure's default chain is asked (the environment, a workload's or the machine's identity, the
command line's sign-in), which takes TLS.
"""

import base64
import binascii
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from storage.object_store.config_keys import DEFAULT_PREFIX, StoreKeys, StoreSettings

CONTAINER_KEY = "storage.azure.container.name"
ACCOUNT_NAME_KEY = "storage.azure.account.name"
ACCOUNT_KEY_KEY = "storage.azure.account.key"
SAS_TOKEN_KEY = "storage.azure.sas.token"
ENDPOINT_KEY = "storage.azure.endpoint.url"
CONNECTION_STRING_KEY = "storage.azure.connection.string"
BLOCK_SIZE_KEY = "storage.azure.upload.block.size"

BLOCK_BYTES_MIN = 100 * 1024
BLOCK_BYTES_MAX = 2**31 - 1
BLOCK_BYTES_DEFAULT = 25 * 1024 * 1024
SUFFIX_DEFAULT = "core.windows.net"


@dataclass(frozen=True, slots=True)
class SharedKey:
    """An account's key; it may do everything."""

    account: str
    text: str = field(repr=False)
    """In Base64."""

    @property
    def key(self) -> bytes:
        return base64.b64decode(self.text)


@dataclass(frozen=True, slots=True)
class SasToken:
    """A shared access signature: the query of a URL, without its question mark."""

    token: str = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class AzureSettings(StoreSettings):
    """How to reach a container. Sizes in bytes.

    `credentials`: None is Azure's default chain.
    """

    container: str
    endpoint_url: str
    credentials: SharedKey | SasToken | None = None
    block_bytes: int = BLOCK_BYTES_DEFAULT


def azure_settings(config: Mapping[str, str], *, prefix: str = DEFAULT_PREFIX) -> AzureSettings:
    """Settings from a broker's keys, `prefix` already stripped from them.

    Raises:
        StorageConfigError: a value is missing or wrong; the message names its key with the prefix, and no secret.
    """
    keys = StoreKeys(config, prefix)
    text = keys.text(CONNECTION_STRING_KEY)
    endpoint_url, credentials = _of_keys(keys) if text is None else _of_connection_string(keys, text)
    if credentials is None and not endpoint_url.startswith("https:"):
        words = f"must be https, or {prefix}{ACCOUNT_KEY_KEY} or {prefix}{SAS_TOKEN_KEY} be set: tokens take TLS"
        raise keys.error(ENDPOINT_KEY, words)
    return AzureSettings(
        container=keys.required_text(CONTAINER_KEY),
        endpoint_url=endpoint_url,
        credentials=credentials,
        block_bytes=keys.integer(BLOCK_SIZE_KEY, BLOCK_BYTES_MIN, BLOCK_BYTES_MAX) or BLOCK_BYTES_DEFAULT,
        proxy=keys.socks_proxy(),
        prefix=prefix,
    )


def _of_keys(keys: StoreKeys) -> tuple[str, SharedKey | SasToken | None]:
    account, key, token = keys.text(ACCOUNT_NAME_KEY), keys.text(ACCOUNT_KEY_KEY), keys.text(SAS_TOKEN_KEY)
    endpoint_url = keys.endpoint_url(ENDPOINT_KEY)
    if account is None and token is None:
        words = f"is not set, nor is {keys.prefix}{SAS_TOKEN_KEY} or {keys.prefix}{CONNECTION_STRING_KEY}"
        raise keys.error(ACCOUNT_NAME_KEY, words)
    if account is None and (key is not None or endpoint_url is None):
        other = ACCOUNT_KEY_KEY if key is not None else ENDPOINT_KEY
        raise keys.error(ACCOUNT_NAME_KEY, f"is not set, but {keys.prefix}{other} {'is' if key else 'is not, either'}")
    endpoint_url = endpoint_url or f"https://{account}.blob.{SUFFIX_DEFAULT}"
    if account is not None and key is not None:
        return endpoint_url, SharedKey(account, _checked_key(keys, ACCOUNT_KEY_KEY, key))
    return endpoint_url, None if token is None else _checked_token(keys, SAS_TOKEN_KEY, token)


def _of_connection_string(keys: StoreKeys, text: str) -> tuple[str, SharedKey | SasToken | None]:
    for key in (ACCOUNT_NAME_KEY, ACCOUNT_KEY_KEY, SAS_TOKEN_KEY, ENDPOINT_KEY):
        if keys.text(key) is not None:
            words = f"and {keys.prefix}{key} are both set: a connection string stands alone"
            raise keys.error(CONNECTION_STRING_KEY, words)
    pairs = [part.partition("=") for part in text.split(";") if part.strip()]
    parts = {name.strip().lower(): value.strip() for name, _, value in pairs}
    account, key, token = (parts.get(name, "") for name in ("accountname", "accountkey", "sharedaccesssignature"))
    endpoint_url = parts.get("blobendpoint", "").rstrip("/")
    if not endpoint_url and account:
        suffix = parts.get("endpointsuffix") or SUFFIX_DEFAULT
        endpoint_url = f"{parts.get('defaultendpointsprotocol') or 'https'}://{account}.blob.{suffix}"
    StoreKeys({CONNECTION_STRING_KEY: endpoint_url}, keys.prefix).endpoint_url(CONNECTION_STRING_KEY)
    if not endpoint_url or not (token or (account and key)):
        words = "needs BlobEndpoint or AccountName, and AccountName with AccountKey or SharedAccessSignature"
        raise keys.error(CONNECTION_STRING_KEY, words)
    if key:
        return endpoint_url, SharedKey(account, _checked_key(keys, CONNECTION_STRING_KEY, key))
    return endpoint_url, _checked_token(keys, CONNECTION_STRING_KEY, token)


def _checked_token(keys: StoreKeys, name: str, text: str) -> SasToken:
    token = text.removeprefix("?")
    if re.fullmatch(r"[!-~]+", token) is None or "sig=" not in token:
        raise keys.error(name, "holds no shared access signature: a URL's query with sig= in it")
    return SasToken(token)


def _checked_key(keys: StoreKeys, name: str, text: str) -> str:
    try:
        base64.b64decode(text, validate=True)
    except binascii.Error:
        raise keys.error(name, "holds an account key that is not Base64") from None
    return text
