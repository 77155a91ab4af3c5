"""What the log says at the start: which tier, and no secret."""

from pathlib import Path

import pytest

from storage.object_store.http import tls
from tests.support.config_files import load_lines
from tidegate.start_lines import python_tls, store_words


def test_a_prefix_is_shown_as_it_is_and_an_endpoint_without_its_user(tmp_path: Path) -> None:
    """Failed before: a prefix like `team:logs@eu/` was taken for a host with a password."""
    config = load_lines(
        tmp_path,
        "rsm.config.key.prefix=team:logs@eu/\n"
        "rsm.config.storage.s3.bucket.name=logs\n"
        "rsm.config.storage.s3.endpoint.url=http://me:secret@store:9000\n",
    )
    words = store_words(config)
    assert words["prefix"] == "team:logs@eu/"
    assert (words["bucket"], words["endpoint"]) == ("logs", "http://[hidden]@store:9000")


S3 = "rsm.config.storage.s3.bucket.name=logs\n"
AZURE = "rsm.config.storage.azure.container.name=logs\nrsm.config.storage.azure.connection.string="
OFF = "tier.tls.native=false\n"
BUILT_IN = "TLS from the store is received by Python's ssl: this Python has OpenSSL built in, or keeps it elsewhere"


@pytest.mark.parametrize(
    "lines",
    [
        S3,
        S3 + "rsm.config.storage.s3.endpoint.url=https://store:9000\n",
        AZURE + "DefaultEndpointsProtocol=https;AccountName=a\n",
    ],
)
def test_who_receives_tls_is_said_where_it_is_not_openssl(
    lines: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Failed before: a Python with OpenSSL built in, as uv's, takes more processor time, and nothing said so."""
    monkeypatch.setattr(tls, "library", lambda: None)
    assert python_tls(load_lines(tmp_path, lines)) == BUILT_IN
    monkeypatch.setattr(tls, "library", object)
    assert python_tls(load_lines(tmp_path, lines)) is None
    off = "TLS from the store is received by Python's ssl: tier.tls.native=false"
    assert python_tls(load_lines(tmp_path, lines + OFF)) == off


@pytest.mark.parametrize(
    "lines",
    [
        "",
        "rsm.config.storage.root=/tier\n",
        S3 + "rsm.config.storage.s3.endpoint.url=http://store:9000\n",
        AZURE + "DefaultEndpointsProtocol=http;AccountName=a\n",
        AZURE + "BlobEndpoint=http://store/a;AccountName=a\n",
    ],
)
def test_without_tls_nobody_receives_it(lines: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tls, "library", lambda: None)
    assert python_tls(load_lines(tmp_path, lines + OFF)) is None
