"""The contract over servers that a machine may lack, and what only they check."""

from dataclasses import replace

import pytest

from storage.errors import RemoteAccessDeniedError
from storage.object_store.azure.store import AzureStore
from storage.object_store.gcs.store import GcsStore
from storage.object_store.s3.config import ChecksumMode
from storage.object_store.s3.store import S3Store
from tests.contract.object_store import ObjectStoreContract, OpenStore, fetched
from tests.storage.object_store.test_clock import says_how_far_ahead
from tests.storage.object_store.test_lost_answers import puts_whose_answers_are_lost_are_done
from tests.storage.object_store.test_s3_fast_get import PART_BYTES, SdkGets, is_fast
from tests.support.azurite import AzureServer
from tests.support.fake_gcs import GcsServer
from tests.support.s3_server import CREDENTIALS, S3Server
from tests.support.s3_stores import BODY, OpenS3


class TestS3StoreWithChecksums(ObjectStoreContract):
    """Bodies are then summed up by botocore, and read through it."""

    @pytest.fixture
    def open_store(self, s3_endpoint: S3Server) -> OpenStore:
        bucket = s3_endpoint.make_bucket()
        mode = ChecksumMode.WHEN_SUPPORTED
        settings = s3_endpoint.settings(
            bucket, part_bytes=PART_BYTES, request_checksums=mode, response_checksums=mode, legacy_md5=True
        )
        return lambda: S3Store(settings)


@pytest.mark.needs("versitygw")
class TestFastGetsOfAnotherS3(ObjectStoreContract):
    threads_key = "{number}.log"
    """versitygw keeps folders, and answers a PUT with 500 while a DELETE takes the folder along."""

    @pytest.fixture
    def open_store(self, gateway: S3Server) -> OpenStore:
        bucket = gateway.make_bucket()

        def open_store() -> S3Store:
            store = S3Store(gateway.settings(bucket, part_bytes=PART_BYTES))
            assert is_fast(store)
            return store

        return open_store


@pytest.mark.needs("versitygw")
def test_puts_whose_answers_are_lost_are_done(gateway: S3Server, open_store: OpenS3) -> None:
    puts_whose_answers_are_lost_are_done(gateway, open_store)


@pytest.mark.needs("versitygw")
def test_a_machine_whose_clock_is_wrong_learns_it(gateway: S3Server, open_store: OpenS3) -> None:
    says_how_far_ahead(gateway, open_store)


@pytest.mark.needs("versitygw")
@pytest.mark.parametrize("key", ["a b+c~d_e.f-g", "100%", "%2F", "tier/é→/x", "a=b&c?d#e", "(!'*)@:;,$"])
def test_any_key_is_signed_as_the_server_checks_it(gateway: S3Server, open_store: OpenS3, key: str) -> None:
    store = open_store(gateway, gateway.make_bucket())
    store.put(key, BODY)
    sdk_gets = SdkGets(store)
    assert fetched(store, key, 10, 500) == BODY[10:500]
    assert fetched(store, key, 0, len(BODY)) == BODY
    assert sdk_gets.count == 1


@pytest.mark.needs("versitygw")
def test_a_wrong_secret_is_denied_in_one_request(gateway: S3Server, open_store: OpenS3) -> None:
    bucket = gateway.make_bucket()
    good, bad = (
        open_store(gateway, bucket),
        open_store(gateway, bucket, credentials=replace(CREDENTIALS, secret_access_key="no")),
    )
    good.put("a", BODY)
    with pytest.raises(RemoteAccessDeniedError, match="SignatureDoesNotMatch"):
        bad.get("a", 0, 10)
    assert fetched(good, "a", 0, 10) == BODY[:10]


@pytest.mark.needs("fake-gcs-server")
class TestGcsStore(ObjectStoreContract):
    @pytest.fixture
    def open_store(self, gcs: GcsServer) -> OpenStore:
        settings = gcs.settings(gcs.make_bucket())
        return lambda: GcsStore(settings)


@pytest.mark.needs("azurite")
class TestAzureStore(ObjectStoreContract):
    @pytest.fixture
    def open_store(self, azure: AzureServer) -> OpenStore:
        settings = azure.settings(azure.make_bucket())
        return lambda: AzureStore(settings)
