"""Signing in step by step: what is asked, what is computed, what is said when it fails."""

import base64
import hashlib
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from protocol.client.errors import UpstreamAuthenticationError
from protocol.client.messages import SASL_AUTHENTICATE, SASL_HANDSHAKE, Question
from protocol.client.sasl import Compute, SaslCredentials, SignIn, sign_in
from tests.protocol.test_scram import server_final

ACCEPTED = SimpleNamespace(error_code=0, mechanisms=())


def answer(auth_bytes: bytes = b"", *, lifetime: object = timedelta(0)) -> SimpleNamespace:
    return SimpleNamespace(error_code=0, error_message=None, auth_bytes=auth_bytes, session_lifetime=lifetime)


def begun(mechanism: str, username: str = "alice", secret: str = "open sesame") -> tuple[SignIn, Any]:
    """A sign-in whose mechanism the broker has accepted, and its next step."""
    steps = sign_in(SaslCredentials(mechanism, username, secret))
    assert next(steps) == Question(SASL_HANDSHAKE, {"mechanism": mechanism})
    return steps, steps.send(ACCEPTED)


def asked_bytes(step: object) -> bytes:
    assert isinstance(step, Question)
    assert step.api is SASL_AUTHENTICATE
    sent = step.values["auth_bytes"]
    assert isinstance(sent, bytes)
    return sent


def end(steps: SignIn, response: SimpleNamespace) -> float:
    """The lifetime that the generator returns for its last response."""
    with pytest.raises(StopIteration) as done:
        steps.send(response)
    lifetime_s: float = done.value.value
    return lifetime_s


def test_plain_takes_two_questions_and_acts_as_nobody_else() -> None:
    steps, step = begun("PLAIN")
    assert asked_bytes(step) == b"\0alice\0open sesame"
    assert "open sesame" not in repr(step)
    assert end(steps, answer(lifetime=timedelta(seconds=90))) == 90.0


def test_scram_shows_its_expensive_step_to_the_shell() -> None:
    password = "ª ﬁ"  # SASLprep would make "a fi" of it, which brokers do not
    steps, step = begun("SCRAM-SHA-256", secret=password)
    bare = asked_bytes(step).decode().removeprefix("n,,")
    server_first = f"{bare.partition(',')[2]}more,s={base64.b64encode(b'salt').decode()},i=4096"
    compute = steps.send(answer(server_first.encode()))
    assert isinstance(compute, Compute)
    client_final = compute.work()
    assert asked_bytes(steps.send(client_final)) == client_final
    salted = hashlib.pbkdf2_hmac("sha256", password.encode(), b"salt", 4096)
    message = f"{bare},{server_first},{client_final.decode().rpartition(',p=')[0]}".encode()
    assert end(steps, answer(server_final("sha256", salted, message))) == 0.0


def test_a_server_that_cannot_prove_itself_is_refused() -> None:
    steps, step = begun("SCRAM-SHA-256")
    nonce = asked_bytes(step).decode().partition("r=")[2]
    compute = steps.send(answer(f"r={nonce}more,s=c2FsdA==,i=4096".encode()))
    assert isinstance(compute, Compute)
    steps.send(compute.work())
    with pytest.raises(UpstreamAuthenticationError, match="signature is wrong"):
        steps.send(answer(b"v=" + base64.b64encode(bytes(32))))


def test_a_mechanism_that_is_not_offered_lists_those_that_are() -> None:
    steps = sign_in(SaslCredentials("SCRAM-SHA-256", "alice", "x"))
    next(steps)
    with pytest.raises(UpstreamAuthenticationError, match="SCRAM-SHA-256 for 'alice'; it offers GSSAPI, PLAIN"):
        steps.send(SimpleNamespace(error_code=33, mechanisms=("GSSAPI", "PLAIN")))


def test_a_refused_token_is_ended_as_the_rfc_says() -> None:
    steps, step = begun("OAUTHBEARER", "svc", "abc.def")
    assert asked_bytes(step) == b"n,,\x01auth=Bearer abc.def\x01\x01"
    assert asked_bytes(steps.send(answer(b'{"status":"invalid_token"}'))) == b"\x01"
    with pytest.raises(UpstreamAuthenticationError, match="OAUTHBEARER for 'svc' failed: the token was refused"):
        steps.send(answer())
