"""The bad ways of test_store_faults.py to Google's and Azure's stores."""

from collections.abc import Iterator

import pytest

from tests.faults import test_store_faults as over_s3
from tests.support.aiven_tier import StoreServer
from tests.support.azurite import azurite
from tests.support.fake_gcs import fake_gcs

topic, plain = over_s3.topic, over_s3.plain

STORES = [
    pytest.param("gcs", marks=pytest.mark.needs("fake-gcs-server")),
    pytest.param("azure", marks=pytest.mark.needs("azurite")),
]


@pytest.fixture(scope="module", params=STORES)
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[StoreServer]:
    start = fake_gcs if request.param == "gcs" else azurite
    with start(tmp_path_factory.mktemp(request.param)) as started:
        yield started


test_a_bad_way = over_s3.test_a_bad_way_is_a_retriable_error_or_the_brokers_answer_until_it_ends
