"""Names that brokers' logs and metrics show."""

import importlib.metadata

import pytest

from proxy.upstream.settings import UpstreamSettings, software_version


def test_the_client_id_names_role_and_host() -> None:
    settings = UpstreamSettings(bootstrap_servers=(), client_host="edge-7")
    assert settings.client_id("frontier") == "tidegate-frontier-edge-7"


def test_a_checkout_that_is_not_installed_has_a_version_too(monkeypatch: pytest.MonkeyPatch) -> None:
    def not_found(_name: str) -> str:
        raise importlib.metadata.PackageNotFoundError

    monkeypatch.setattr(importlib.metadata, "version", not_found)
    software_version.cache_clear()
    assert software_version() == "0"
    software_version.cache_clear()
