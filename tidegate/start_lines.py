"""What the log says at the start and at the end: which tier, which brokers, which addresses. No secrets.

`ready:` is not among them: others wait for that line as it is (docs/protocol.md), so it is never JSON.
"""

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, version

import structlog

from metrics.troubles import TroubleId
from proxy.readiness import Readiness
from storage.config.masking import without_credentials
from storage.object_store.http.tls import why_python
from tidegate.config.model import Config
from tidegate.memory_limit import memory_bytes, memory_shortage
from tidegate.open_files import raise_limit, shortage

_PLACES = {
    "storage.s3.bucket.name": "bucket",
    "storage.gcs.bucket.name": "bucket",
    "storage.azure.container.name": "container",
    "storage.azure.account.name": "account",
    "storage.root": "directory",
    "dir": "directory",
    "storage.s3.endpoint.url": "endpoint",
    "storage.gcs.endpoint.url": "endpoint",
    "storage.azure.endpoint.url": "endpoint",
    "key.prefix": "prefix",
}

_log = structlog.get_logger(__name__)


def store_words(config: Config) -> Mapping[str, str]:
    """Return where the tier is: class, then what there is of bucket, container or directory, endpoint and prefix."""
    given = config.remote_storage_config
    backend = given.get("storage.backend.class", "").strip() or config.remote_storage_manager_class_name
    words = {"store": backend.rpartition(".")[2]}
    for key, word in _PLACES.items():
        is_masked = key == "key.prefix" and given.get("key.prefix.mask", "").strip().lower() == "true"
        if given.get(key, "").strip() and not is_masked:
            text = given[key].strip()
            words[word] = without_credentials(text) if word == "endpoint" else text
    return words


def python_tls(config: Config) -> str | None:
    """Return a sentence that Python's ssl receives from the store, and why; None: OpenSSL does, or there is no TLS."""
    words, given = store_words(config), config.remote_storage_config
    addresses = f"{words.get('endpoint', '')} {given.get('storage.azure.connection.string', '')}"
    is_plain = re.search(r"(^|BlobEndpoint=)http://|DefaultEndpointsProtocol=http(;|\s*$)", addresses, re.IGNORECASE)
    reason = why_python(config.tier.tls_native)
    if reason is None or is_plain or not words.keys() & {"bucket", "container"}:
        return None
    return f"TLS from the store is received by Python's ssl: {reason}"


def say_start(config: Config, workers: int = 1) -> None:
    """Log one line."""
    raise_limit()
    _log.info(
        "starting",
        version=own_version(),
        file=str(config.files[""]),
        workers=workers,
        **store_words(config),
        upstream=",".join(map(str, config.upstream.bootstrap_servers)),
        security_protocol=config.upstream.security.protocol.value,
        proxy_listen=str(config.proxy.listen),
        admin_listen=str(config.admin.listen),
    )


def tell_start(config: Config, readiness: Readiness, workers: int = 1) -> None:
    """Tell of troubles that stay as they are while it runs."""
    memory = memory_shortage(config, workers, memory_bytes())
    for trouble, reason in (
        (TroubleId.IDENTITY_UNCLEAR, config.identity_trouble),
        (TroubleId.OPEN_FILES_FEW, shortage(config, workers)),
        (TroubleId.MEMORY_SHORT, None if memory is None else memory[0]),
    ):
        readiness.tell(trouble, filter(None, [reason]))


def own_version() -> str:
    """As it is installed."""
    try:
        return version("tidegate")
    except PackageNotFoundError:
        return "a checkout"


def say_end(exit_code: int) -> None:
    """The last line."""
    _log.info("stopped", exit_code=exit_code)
