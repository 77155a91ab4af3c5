import pytest

from tests.contract.written_segments import WrittenSegmentsContract


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("gateway", marks=pytest.mark.needs("versitygw")),
        pytest.param("gcs", marks=pytest.mark.needs("fake-gcs-server")),
        pytest.param("azure", marks=pytest.mark.needs("azurite")),
    ],
)
class TestInOtherStores(WrittenSegmentsContract):
    @pytest.fixture
    def where(self, kind: str, request: pytest.FixtureRequest) -> dict[str, str]:
        server = request.getfixturevalue(kind)
        return dict(server.config(server.make_bucket()))
