"""Azurite: Microsoft's own server of Azure's blob API, in memory, in a process of its own.

    with azurite(work) as server:
        store = AzureStore(server.settings(server.make_bucket()))

It checks signatures and shared access signatures, but no roles; answers that deny those are scripted.
"""

import base64
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from storage.object_store.azure.config import AzureSettings, SharedKey
from tests.support.needs import AZURITE
from tests.support.server_process import server_process
from tools.demo.kafka_cluster import free_port
from tools.demo.kafka_properties import HOST

ACCOUNT = "tidegatetests"
KEY = base64.b64encode(b"only of this server, and 32 bytes"[:32]).decode()
BLOCK_BYTES = 2 * 1024 * 1024
COMMAND = (
    *("env", f"AZURITE_ACCOUNTS={ACCOUNT}:{KEY}", "node"),
    str(AZURITE / "node_modules" / "azurite" / "dist" / "src" / "blob" / "main.js"),
)


@dataclass(frozen=True, slots=True)
class AzureServer:
    """A running server; containers of tests do not meet when each test makes its own."""

    endpoint_url: str
    """With the account, which is a folder here."""

    def make_bucket(self, name: str | None = None) -> str:
        """Make a container, as Azure calls a bucket; without a name, of one that nobody has."""
        from azure.storage.blob import BlobServiceClient

        name = name or f"container-{secrets.token_hex(6)}"
        with BlobServiceClient(self.endpoint_url, credential={"account_name": ACCOUNT, "account_key": KEY}) as client:
            client.create_container(name).close()
        return name

    def at(self, endpoint_url: str) -> "AzureServer":
        """The same server, reached another way."""
        return AzureServer(f"{endpoint_url}/{ACCOUNT}")

    def settings(self, bucket: str, **changes: object) -> AzureSettings:
        """Settings that reach a container; `changes` are other fields of AzureSettings."""
        given: dict[str, object] = {
            "container": bucket,
            "endpoint_url": self.endpoint_url,
            "credentials": SharedKey(ACCOUNT, KEY),
            "block_bytes": BLOCK_BYTES,
        }
        return AzureSettings(**{**given, **changes})  # type: ignore[arg-type]  # the caller's fields, by name

    def config(self, bucket: str) -> dict[str, str]:
        """The same as a storage manager's keys, the broker's prefix stripped."""
        return {
            "storage.backend.class": "io.aiven.kafka.tieredstorage.storage.azure.AzureBlobStorage",
            "storage.azure.container.name": bucket,
            "storage.azure.connection.string": self.connection_string(),
        }

    def connection_string(self) -> str:
        """As Azure's portal hands them out."""
        pairs = {"DefaultEndpointsProtocol": "http", "AccountName": ACCOUNT, "AccountKey": KEY}
        return ";".join(f"{name}={value}" for name, value in {**pairs, "BlobEndpoint": self.endpoint_url}.items())


@contextmanager
def azurite(work: Path) -> Iterator[AzureServer]:
    """Serve until the block ends; it takes about two seconds. Its log goes to `work`."""
    port = free_port()
    command = (*COMMAND, *azurite_options(str(port)), "--inMemoryPersistence")
    with server_process("azurite", command, work, port=port):
        yield AzureServer(f"http://{HOST}:{port}/{ACCOUNT}")


def azurite_options(port: str) -> tuple[str, ...]:
    """To serve at that port; the account is a folder, under whatever name the server is reached."""
    address = ("--blobHost", HOST, "--blobPort", port, "--silent", "--disableTelemetry")
    return (*address, "--skipApiVersionCheck", "--disableProductStyleUrl")
