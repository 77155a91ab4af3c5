"""Client libraries between the oldest and the newest sign in."""

import pytest

from tests.integration import test_client_sign_in
from tests.integration.test_client_sign_in import BETWEEN, marked, sign_in_and_read
from tests.support.digests import Digests
from tests.support.secured_kafka import SecuredKafka
from tests.support.tidegate import RunningTidegate

pytestmark = test_client_sign_in.pytestmark
direct = test_client_sign_in.direct


@pytest.mark.parametrize(("client", "handshake"), [marked(client, 1) for client in BETWEEN])
def test_a_client_signs_in_and_reads_the_tier(
    client: str, handshake: int, guarded: SecuredKafka, gate: RunningTidegate, direct: Digests
) -> None:
    sign_in_and_read(client, handshake, guarded, gate, direct)
