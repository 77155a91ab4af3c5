"""SCRAM against the example of RFC 7677 §3 and against answers that a client must not believe."""

import base64
import hashlib
import hmac

import pytest

from protocol.client.errors import UpstreamAuthenticationError
from protocol.client.sasl import SERVER_MESSAGE_BYTES_MAX, ScramClient
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


def server_final(name: str, salted: bytes, message: bytes) -> bytes:
    """RFC 5802 §3: the server's signature over the whole exchange."""
    return b"v=" + base64.b64encode(hmac.digest(hmac.digest(salted, b"Server Key", name), message, name))


def test_a_server_that_follows_rfc_5802_accepts_the_proof_by_sha_512() -> None:
    client = ScramClient("SCRAM-SHA-512", "user", "pencil", NONCE)
    assert client.first_message() == CLIENT_FIRST
    without_proof, proof = client.final_message(SERVER_FIRST).rsplit(b",p=", 1)
    message = b",".join((CLIENT_FIRST[3:], SERVER_FIRST, without_proof))
    salted = hashlib.pbkdf2_hmac("sha512", b"pencil", base64.b64decode("W22ZaJ0SNY7soEsUEjb6gQ=="), 4096)
    stored = hashlib.sha512(hmac.digest(salted, b"Client Key", "sha512")).digest()
    signature = hmac.digest(stored, message, "sha512")
    recovered = bytes(a ^ b for a, b in zip(base64.b64decode(proof), signature, strict=True))
    assert hashlib.sha512(recovered).digest() == stored
    client.verify(server_final("sha512", salted, message))
