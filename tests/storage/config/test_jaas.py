"""sasl.jaas.config: Java's quoting, each mechanism, and refusals that never show a password."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from storage.config.jaas import (
    OAUTHBEARER_MODULE,
    PLAIN_MODULE,
    SCRAM_MODULE,
    JaasError,
    credentials,
    parse_login_module,
)
from storage.config.model import SaslMechanism

SECRET = "hunter2"


def test_plain_gives_user_and_password() -> None:
    found = credentials(f'{PLAIN_MODULE} required username="tide" password="{SECRET}";', SaslMechanism.PLAIN)
    assert (found.mechanism, found.username, found.password) == (SaslMechanism.PLAIN, "tide", SECRET)
    assert SECRET not in repr(found)


@pytest.mark.parametrize("mechanism", [SaslMechanism.SCRAM_SHA_256, SaslMechanism.SCRAM_SHA_512])
def test_scram_takes_either_hash(mechanism: SaslMechanism) -> None:
    found = credentials(f"{SCRAM_MODULE} required username='tide' password='p';", mechanism)
    assert (found.mechanism, found.username, found.password) == (mechanism, "tide", "p")


def test_oauthbearer_keeps_the_modules_options() -> None:
    found = credentials(f'{OAUTHBEARER_MODULE} required clientId="a" clientSecret="b" ;', SaslMechanism.OAUTHBEARER)
    assert dict(found.options) == {"clientId": "a", "clientSecret": "b"}


def test_quotes_escapes_and_comments_are_javas() -> None:
    module = parse_login_module(
        'a.B required // to the end "of the line"\n /* and ; this */ a="x\\"y\\\\z\\n\\101\\7q" b=\'"\' c-d_e$=w1.2 ;\n'
    )
    assert dict(module.options) == {"a": 'x"y\\z\nA\x07q', "b": '"', "c-d_e$": "w1.2"}


@given(st.text(st.characters(min_codepoint=1, exclude_categories=["Cs"], exclude_characters="\n"), max_size=30))
def test_any_text_survives_quoting(password: str) -> None:
    quoted = password.replace("\\", "\\\\").replace('"', '\\"')
    assert parse_login_module(f'a.B required p="{quoted}";').options["p"] == password


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "lacks the login module's class"),
        (PLAIN_MODULE, "lacks a control flag"),
        (f"{PLAIN_MODULE} maybe;", "must have one of required"),
        (f'{PLAIN_MODULE} required username="a"', "must end with ';'"),
        (f"{PLAIN_MODULE} required username;", "name=value"),
        (f"{PLAIN_MODULE} required username=;", "lacks a value of username"),
        (f'{PLAIN_MODULE} required username="a" password="{SECRET};', "open quote at character"),
        (f"{PLAIN_MODULE} required password={SECRET}@x;", "unquoted sign"),
        (f'{PLAIN_MODULE} required username="a";', "has no password"),
        (f'{PLAIN_MODULE} required password="{SECRET}";', "has no username"),
        (f"{PLAIN_MODULE} required; {PLAIN_MODULE} required;", "exactly one"),
        (f'{SCRAM_MODULE} required username="a" password="{SECRET}";', "not for the mechanism PLAIN"),
        ("com.sun.security.auth.module.Krb5LoginModule required;", "Kerberos is not supported"),
        ("com.example.Login required;", "names the login module com.example.Login"),
    ],
)
def test_what_does_not_fit_is_refused_without_its_values(text: str, reason: str) -> None:
    with pytest.raises(JaasError, match=reason) as caught:
        credentials(text, SaslMechanism.PLAIN)
    assert SECRET not in str(caught.value)


def test_delegation_tokens_are_refused() -> None:
    text = f'{SCRAM_MODULE} required username="a" password="b" tokenauth="true";'
    with pytest.raises(JaasError, match="delegation token"):
        credentials(text, SaslMechanism.SCRAM_SHA_256)


def test_a_text_beyond_the_limit_is_refused() -> None:
    with pytest.raises(JaasError, match="longer than"):
        parse_login_module("a" * 70_000)
