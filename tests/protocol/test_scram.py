"""SCRAM against the example of RFC 7677 §3 and against answers that a client must not believe."""

import base64
import hashlib
import hmac

import pytest
from hypothesis import given
from hypothesis import strategies as st

from protocol.client.errors import UpstreamAuthenticationError
from protocol.client.sasl import HASHES, ITERATIONS_MAX, ITERATIONS_MIN, SERVER_MESSAGE_BYTES_MAX, ScramClient
from tests.support.for_each import for_each

# RFC 7677 §3
NONCE = "rOprNGfwEbeRWgbNEkqO"
CLIENT_FIRST = b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO"
SERVER_FIRST = b"r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096"
CLIENT_FINAL = (
    b"c=biws,r=rOprNGfwEbeRWgbNEkqO%hvYDpWUa2RaTCAfuxFIlj)hNlF$k0,p=dHzbZapWIk4jUhN+Ute9ytag9zjfMHgsqmmiz7AndVQ="
)
SERVER_FINAL = b"v=6rriTRBi23WpRR/wtup+mMhUZUn/dB5nLTJRsjl95G4="


def rfc_client(password: str = "pencil") -> ScramClient:
    return ScramClient("SCRAM-SHA-256", "user", password, NONCE)


def test_the_rfc_example_comes_out_byte_for_byte() -> None:
    client = rfc_client()
    assert client.first_message() == CLIENT_FIRST
    assert client.final_message(SERVER_FIRST) == CLIENT_FINAL
    client.verify(SERVER_FINAL)


def test_a_signature_before_the_proof_is_refused_and_what_e_says_is_repeated() -> None:
    client = rfc_client()
    with pytest.raises(UpstreamAuthenticationError):
        client.verify(SERVER_FINAL)
    client.final_message(SERVER_FIRST)
    with pytest.raises(UpstreamAuthenticationError, match="invalid-proof"):
        client.verify(b"e=invalid-proof")


@for_each(
    "server_first, reason",
    [
        (b"r=other,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce"),
        (b"r=rOprNGfwEbeRWgbNEkqO,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "nonce"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4095", "iterations"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=1000001", "iterations"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=99999999999", "iteration count"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=-4096", "iteration count"),
        ("r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=٤٠٩٦".encode(), "iteration count"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=,i=4096", "salt is missing"),
        (b"r=rOprNGfwEbeRWgbNEkqOx,s=!!!,i=4096", "salt is malformed"),
        (b"m=ext,r=rOprNGfwEbeRWgbNEkqOx,s=W22ZaJ0SNY7soEsUEjb6gQ==,i=4096", "extension"),
        (b"", "malformed"),
        (b"garbage", "malformed"),
        (b"\xff\xfe", "UTF-8"),
        (b"r=" + bytes(SERVER_MESSAGE_BYTES_MAX), "bytes"),
    ],
)
def test_a_bad_server_first_message_is_refused_with_its_reason(server_first: bytes, reason: str) -> None:
    with pytest.raises(UpstreamAuthenticationError, match=reason) as caught:
        rfc_client(password="open sesame").final_message(server_first)
    assert "SCRAM-SHA-256" in str(caught.value)
    assert "'user'" in str(caught.value)
    assert "open sesame" not in str(caught.value)


def test_commas_and_equal_signs_in_a_name_are_escaped() -> None:
    assert ScramClient("SCRAM-SHA-512", "a=b,c", "x", "n").first_message() == b"n,,n=a=3Db=2Cc,r=n"


def test_each_conversation_draws_its_own_nonce() -> None:
    first, second = (ScramClient("SCRAM-SHA-256", "user", "x").first_message() for _ in range(2))
    assert first != second


@given(st.sampled_from(sorted(HASHES)), st.text(max_size=20), st.text(max_size=20), st.binary(min_size=1, max_size=32))
def test_a_server_that_follows_rfc_5802_accepts_the_proof(
    mechanism: str, username: str, password: str, salt: bytes
) -> None:
    try:
        username.encode(), password.encode()
    except UnicodeEncodeError:
        return
    client = ScramClient(mechanism, username, password)
    first_bare = client.first_message().decode()[3:]
    server_first = f"{first_bare[first_bare.rindex('r=') :]}more,s={base64.b64encode(salt).decode()},i={ITERATIONS_MIN}"
    final = client.final_message(server_first.encode()).decode()
    without_proof, proof = final.rsplit(",p=", 1)
    message = ",".join((first_bare, server_first, without_proof)).encode()
    name = HASHES[mechanism]
    salted = hashlib.pbkdf2_hmac(name, password.encode(), salt, ITERATIONS_MIN)
    stored = hashlib.new(name, hmac.digest(salted, b"Client Key", name)).digest()
    signature = hmac.digest(stored, message, name)
    recovered = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
    assert hashlib.new(name, recovered).digest() == stored
    client.verify(server_final(name, salted, message))


def server_final(name: str, salted: bytes, message: bytes) -> bytes:
    """RFC 5802 §3: the server's signature over the whole exchange."""
    return b"v=" + base64.b64encode(hmac.digest(hmac.digest(salted, b"Server Key", name), message, name))


def test_the_bounds_are_kafkas_minimum_and_a_million() -> None:
    assert (ITERATIONS_MIN, ITERATIONS_MAX) == (4096, 1_000_000)
