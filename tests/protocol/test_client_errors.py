"""The error tree: one root, a verdict on each, and copies that lose nothing."""

import pytest

from protocol.client import errors
from protocol.client.errors import UpstreamError, UpstreamRefusedError

KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, UpstreamError)]


@pytest.mark.parametrize("kind", KINDS)
def test_every_error_says_when_it_is_raised_and_whether_a_retry_may_help(kind: type[UpstreamError]) -> None:
    assert kind.__doc__
    assert isinstance(kind.retriable, bool)


def test_a_refusal_made_again_from_its_arguments_is_the_same() -> None:
    first = UpstreamRefusedError("no", 29, True)
    second = type(first)(*first.args)
    assert (str(second), second.error_code, second.retriable) == ("no", 29, True)
