"""The servers that these tests share."""

from tests.support.store_servers import azure, gateway, gcs

__all__ = ["azure", "gateway", "gcs"]
