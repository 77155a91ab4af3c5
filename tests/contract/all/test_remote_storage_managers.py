"""The contract of RemoteStorageManager over servers that a machine may lack."""

import pytest

from tests.contract.remote_storage_manager import BucketContract
from tests.support.aiven_tier import StoreServer


@pytest.mark.needs("versitygw")
class TestPlainObjectsInAnotherS3(BucketContract):
    """versitygw, which keeps each object in a file."""

    bucket_key = "s3.bucket.name"

    @pytest.fixture
    def server(self, gateway: StoreServer) -> StoreServer:
        return gateway


@pytest.mark.needs("fake-gcs-server")
class TestPlainObjectsInGcs(BucketContract):
    bucket_key = "gcs.bucket.name"
    absent_is_named_when_asked = False
    """Google names the bucket (test_gcs.py); fake-gcs-server says no more than "Not Found"."""

    @pytest.fixture
    def server(self, gcs: StoreServer) -> StoreServer:
        return gcs


@pytest.mark.needs("azurite")
class TestPlainObjectsInAzure(BucketContract):
    bucket_key = "azure.container.name"

    @pytest.fixture
    def server(self, azure: StoreServer) -> StoreServer:
        return azure
