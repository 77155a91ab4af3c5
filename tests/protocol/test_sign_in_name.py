"""As whom a client has signed in: the name that the broker accepted, no other, and nothing else of its tokens."""

import json
from base64 import urlsafe_b64encode
from itertools import product

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from protocol.sign_in import RAW_HEAD_BYTES, SignIn
from protocol.sign_in_name import NAME_BYTES_MAX, SignInName, name_in_token, tells_name, token_in_frame
from protocol.wire.group_id import GROUP_APIS, HEAD_BYTES, NamedGroup, peek_group
from protocol.wire.identifiers import ApiKey
from tests.protocol.test_sign_in import (
    BEARER_ERROR,
    SCRAM,
    SERVER_FINAL,
    SERVER_FIRST,
    accepted,
    authenticate_answer,
    authenticate_frame,
    handshake,
    handshake_head,
)
from tests.support import kio_frames
from tests.support.for_each import for_each

SECRET = "pencil-4711"
MECHANISMS = ("PLAIN", *SCRAM, "OAUTHBEARER", "GSSAPI", "")
CLIENT_FINAL = b"c=biws,r=abcdef,p=" + SECRET.encode()


def base64url(content: bytes) -> bytes:
    return urlsafe_b64encode(content).rstrip(b"=")


def bearer(claims: object, scheme: bytes = b"Bearer") -> bytes:
    jwt = b".".join(base64url(part) for part in (b'{"alg":"none"}', json.dumps(claims).encode(), SECRET.encode()))
    return b"n,a=other,\1auth=" + scheme + b" " + jwt + b"\1ext=1\1\1"


def plain(name: str) -> bytes:
    return f"\0{name}\0{SECRET}".encode()


TOLD: list[tuple[str, bytes, str | None]] = [
    ("PLAIN", plain("alice"), "alice"),
    ("PLAIN", b"alice\0alice\0" + SECRET.encode(), "alice"),
    ("PLAIN", plain("zoë"), "zoë"),
    ("PLAIN", b"\0alice", None),
    ("PLAIN", b"\0alice\0secret\0more", None),
    ("PLAIN", b"\0\xff\0secret", None),
    ("PLAIN", plain("a\nb"), None),
    ("PLAIN", plain("n" * NAME_BYTES_MAX), "n" * NAME_BYTES_MAX),
    ("PLAIN", plain("n" * (NAME_BYTES_MAX + 1)), None),
    ("PLAIN", plain("ë" * (NAME_BYTES_MAX // 2 + 1)), None),
    ("SCRAM-SHA-256", b"n,,n=user,r=rOprNGfwEbeRWgbNEkqO", "user"),  # RFC 7677 §3
    ("SCRAM-SHA-512", b"n,a=other,n=a=2Cb=3Dc,r=x", "a,b=c"),
    ("SCRAM-SHA-512", b"n,,n=token-id,r=x,tokenauth=true", "token-id"),
    ("SCRAM-SHA-256", b"n,,n=,r=x", None),
    ("SCRAM-SHA-256", b"n=user,r=x", None),
    ("SCRAM-SHA-256", CLIENT_FINAL, None),
    ("OAUTHBEARER", bearer({"sub": "svc", "scope": ["a"]}), "svc"),
    ("OAUTHBEARER", bearer({"sub": "svc"}, b"bEaReR "), "svc"),
    ("OAUTHBEARER", bearer({"sub": 7}), None),
    ("OAUTHBEARER", bearer({"name": "svc"}), None),
    ("OAUTHBEARER", bearer(["sub"]), None),
    ("OAUTHBEARER", bearer({"sub": "\ud800"}), None),
    ("OAUTHBEARER", b"n,,\1auth=Bearer opaque-token\1\1", None),
    ("OAUTHBEARER", b"\1", None),
    # What one reads as the first and another as the last is nobody's name.
    ("OAUTHBEARER", bearer({"sub": "one"}) + bearer({"sub": "two"})[9:], None),
    ("OAUTHBEARER", b"n,,\1auth=Bearer e30." + base64url(b'{"sub":"one","sub":"two"}') + b".x\1\1", None),
    ("OAUTHBEARER", b"n,,\1auth=Bearer e30." + base64url(b"[" * 40_000) + b".x\1\1", None),
    ("GSSAPI", plain("alice"), None),
    ("AWS_MSK_IAM", b'{"user":"alice"}', None),
]


@for_each("mechanism, token, name", TOLD)
def test_the_name_of_a_token(mechanism: str, token: bytes, name: str | None) -> None:
    assert name_in_token(mechanism, memoryview(token)) == name


@given(st.sampled_from(MECHANISMS), st.binary() | st.builds(bearer, st.text() | st.dictionaries(st.text(), st.text())))
@example("OAUTHBEARER", b"n,,\1auth=Bearer a.e.\1")
@example("OAUTHBEARER", b"n,,\1auth=Bearer a." + base64url(b"9" * 5000) + b".b\1")
def test_no_token_raises(mechanism: str, token: bytes) -> None:
    name = name_in_token(mechanism, memoryview(token))
    assert name is None or (0 < len(name.encode()) <= NAME_BYTES_MAX and name.isprintable())


@for_each("api_version", kio_frames.versions_of(ApiKey.SASL_AUTHENTICATE, "request"))
def test_the_token_of_a_frame_by_another_codec(api_version: int) -> None:
    schema = kio_frames.schema(ApiKey.SASL_AUTHENTICATE, api_version, kind="request")
    frame = kio_frames.request_frame(kio_frames.fill(schema, {"auth_bytes": plain("alice")}))
    assert bytes(token_in_frame(memoryview(frame), api_version) or b"") == plain("alice")
    for size in range(len(frame) - (api_version >= 2)):  # all but the tagged section
        assert token_in_frame(memoryview(frame)[:size], api_version) is None


class Talk:
    """A sign-in of which somebody wants to know the name, by SaslAuthenticate or by raw tokens."""

    def __init__(self, api_version: int = 1) -> None:
        self.sign_in = SignIn(is_demanded=True, learns_name=True)
        self.api_version = api_version

    def shake(self, mechanism: str, error_code: int = 0) -> None:
        request = handshake(mechanism, self.api_version)
        self.sign_in.on_handshake(request)
        self.sign_in.on_handshake_answer(request, handshake_head(error_code))

    def say(self, token: bytes, answer: bytes = b"", error_code: int = 0) -> SignInName | None:
        self.answer(self.ask(token), answer, error_code)
        return self.sign_in.signed_in_as

    def ask(self, token: bytes) -> SignInName | None:
        offered = self.sign_in.offered(memoryview(token) if self.sign_in.wants_token else None)
        if self.api_version == 0:
            self.sign_in.on_raw_token()
        return offered

    def answer(self, offered: SignInName | None, answer: bytes = b"", error_code: int = 0) -> None:
        if self.api_version == 0:
            self.sign_in.on_raw_answer(memoryview(bytes(4) + answer)[:RAW_HEAD_BYTES], offered=offered)
        else:
            frame = authenticate_frame(2, answer, error_code=error_code)
            self.sign_in.on_authenticate_answer(2, memoryview(frame), offered=offered)
            self.sign_in.on_answer(ApiKey.SASL_AUTHENTICATE)


@pytest.fixture
def talk() -> Talk:
    return Talk()


def test_a_certificate_names_who_has_not_signed_in(talk: Talk) -> None:
    certified_as = SignInName("TLS", "CN=alice")
    talk.sign_in = SignIn(is_demanded=True, learns_name=True, certified_as=certified_as)
    talk.shake("PLAIN")
    assert talk.say(plain("bob"), error_code=58) == certified_as
    talk.shake("PLAIN")
    assert talk.say(plain("bob")) == ("PLAIN", "bob")


def test_nothing_is_learnt_unless_somebody_wants_to_know() -> None:
    sign_in = accepted("PLAIN", 1)
    assert not sign_in.wants_token
    assert sign_in.offered(None) is None
    authenticate_answer(sign_in, authenticate_frame(2, b""))
    assert (sign_in.is_signed_in, sign_in.signed_in_as) == (True, None)


@for_each("api_version, mechanism", product((0, 1), SCRAM))
def test_the_first_message_of_scram_names_who_the_last_answer_lets_in(api_version: int, mechanism: str) -> None:
    talk = Talk(api_version)
    talk.shake(mechanism)
    assert talk.say(b"n,,n=alice,r=abc", SERVER_FIRST) is None
    assert talk.say(CLIENT_FINAL, SERVER_FINAL) == (mechanism, "alice")


@for_each("api_version", (0, 1))
def test_a_refused_token_names_nobody_and_the_next_one_whom_it_tells(api_version: int) -> None:
    """Kafka's OAuthBearerSaslServer takes another token after one that it has refused."""
    for token, name in ((bearer({"sub": "mallory"}), "mallory"), (b"n,,\1auth=Bearer opaque\1\1", None)):
        talk = Talk(api_version)
        talk.shake("OAUTHBEARER")
        assert talk.say(bearer({"sub": "admin"}), BEARER_ERROR) is None
        assert talk.say(token) == ("OAUTHBEARER", name)


def test_pipelined_tokens_are_told_apart_by_their_own_answers(talk: Talk) -> None:
    talk.shake("PLAIN")
    offered = [talk.ask(plain(name)) for name in ("admin", "mallory", "root")]
    for each, error_code in zip(offered, [58, 0, 58], strict=True):
        talk.answer(each, error_code=error_code)
        if error_code:
            talk.sign_in.on_handshake_answer(handshake("PLAIN", 1), handshake_head())
    assert talk.sign_in.signed_in_as == ("PLAIN", "mallory")


def test_a_handshake_that_is_pipelined_behind_changes_nobody(talk: Talk) -> None:
    """What shows its success later, and a handshake with a name behind it before that success shows."""
    talk.shake("GSSAPI")
    talk.say(b"ticket", b"challenge")
    talk.sign_in.on_handshake(handshake("PLAIN", 1))
    offered = talk.ask(plain("admin"))
    talk.sign_in.on_answer(ApiKey.METADATA)
    assert talk.sign_in.signed_in_as == ("GSSAPI", None)
    talk.sign_in.on_handshake_answer(handshake("PLAIN", 1), handshake_head(34))
    talk.answer(offered)
    assert talk.sign_in.signed_in_as == ("GSSAPI", None)


def test_a_second_sign_in_changes_the_name_once_it_succeeds(talk: Talk) -> None:
    talk.shake("PLAIN")
    assert talk.say(plain("alice")) == ("PLAIN", "alice")
    talk.shake("SCRAM-SHA-256")
    assert talk.say(b"n,,n=bob,r=abc", SERVER_FIRST) == ("PLAIN", "alice")
    assert talk.say(CLIENT_FINAL, b"e=invalid-proof") == ("PLAIN", "alice")
    talk.shake("SCRAM-SHA-256")
    talk.say(b"n,,n=bob,r=abc", SERVER_FIRST)
    assert talk.say(CLIENT_FINAL, SERVER_FINAL) == ("SCRAM-SHA-256", "bob")


@for_each(
    "api_key, api_version", [(key, version) for key in GROUP_APIS for version in kio_frames.versions_of(key, "request")]
)
def test_the_group_of_a_frame_by_another_codec(api_key: int, api_version: int) -> None:
    """The head is enough, whatever follows; of a shorter one no other group is made."""
    schema = kio_frames.schema(api_key, api_version, kind="request")
    frame = kio_frames.request_frame(kio_frames.fill(schema, {"group_id": "billing"}), client_id="billing-1")
    assert peek_group(memoryview(frame)[:HEAD_BYTES]) == NamedGroup("billing-1", "billing")
    end = frame.index(b"billing", frame.index(b"billing-1") + 9) + len(b"billing")
    assert {peek_group(memoryview(frame)[:size]) for size in range(end)} == {None}


def test_of_several_groups_none_is_the_clients() -> None:
    """An administrator's question for the offsets of many."""
    schema = kio_frames.schema(9, 8, kind="request")
    asked = kio_frames.fill(schema, {"groups": [{"group_id": "billing"}, {"group_id": "shipping"}]})
    assert peek_group(memoryview(kio_frames.request_frame(asked))) is None


def test_every_mechanism_that_tells_a_name_is_judged_by_its_answers() -> None:
    """A raw sign-in by any other mechanism is refused, and its name could count too early."""
    for mechanism in MECHANISMS:
        assert not (tells_name(mechanism) and SignIn.refuses(handshake(mechanism, 0)))
