"""Names that brokers' logs and metrics show."""

from proxy.upstream.settings import UpstreamSettings


def test_the_client_id_names_role_and_host() -> None:
    settings = UpstreamSettings(bootstrap_servers=(), client_host="edge-7")
    assert settings.client_id("frontier") == "tidegate-frontier-edge-7"
