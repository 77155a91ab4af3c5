"""`sasl.jaas.config`: one login module, read as Kafka's JaasConfig reads it with Java's StreamTokenizer.

    org.apache.kafka.common.security.plain.PlainLoginModule required username="a" password="b";

- Words are letters, digits, `.`, `-`, `_`, `$`; values are words or quoted with `"` or `'`.
- In quotes a backslash escapes: `\\n \\t \\r \\b \\f \\a \\v`, up to three octal digits; any other character
  stands for itself.
- `//` and `/* */` comments. Exactly one entry, ended by `;`.
- Kerberos and delegation tokens are refused. No message ever quotes an option's value.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final

from storage.config.model import SaslCredentials, SaslMechanism

TEXT_LENGTH_MAX: Final = 64 * 1024
FLAGS: Final = ("required", "requisite", "sufficient", "optional")

PLAIN_MODULE: Final = "org.apache.kafka.common.security.plain.PlainLoginModule"
SCRAM_MODULE: Final = "org.apache.kafka.common.security.scram.ScramLoginModule"
OAUTHBEARER_MODULE: Final = "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule"

MODULE_MECHANISMS: Final = {
    PLAIN_MODULE: (SaslMechanism.PLAIN,),
    SCRAM_MODULE: (SaslMechanism.SCRAM_SHA_256, SaslMechanism.SCRAM_SHA_512),
    OAUTHBEARER_MODULE: (SaslMechanism.OAUTHBEARER,),
}

_TOKEN = re.compile(
    r"""(?P<space>[\x00-\x20]+|//[^\n]*|/\*.*?\*/)
    |(?P<quoted>"(?:[^"\\\n]|\\.)*"|'(?:[^'\\\n]|\\.)*')
    |(?P<word>[A-Za-z0-9_.$\-\u00a0-\uffff]+)
    |(?P<sign>[=;])""",
    re.VERBOSE | re.DOTALL,
)
_ESCAPE = re.compile(r"\\([0-3][0-7]{0,2}|[4-7][0-7]?|.)", re.DOTALL)
_ESCAPED: Final = {"n": "\n", "t": "\t", "r": "\r", "b": "\b", "f": "\f", "a": "\a", "v": "\v"}


class JaasError(Exception):
    """The text is no login module that we can use; the message is the end of a sentence and holds no value."""


@dataclass(frozen=True, slots=True)
class LoginModule:
    class_name: str
    options: Mapping[str, str] = field(repr=False)


def credentials(text: str, mechanism: SaslMechanism) -> SaslCredentials:
    """What a login module gives to a mechanism. Raises JaasError if they do not fit or something is missing."""
    module = parse_login_module(text)
    mechanisms = MODULE_MECHANISMS.get(module.class_name)
    if mechanisms is None:
        kerberos = ": Kerberos is not supported" if module.class_name.endswith("Krb5LoginModule") else ""
        raise JaasError(f"names the login module {module.class_name}{kerberos}; PLAIN, SCRAM and OAUTHBEARER are read")
    if mechanism not in mechanisms:
        raise JaasError(f"names {module.class_name}, which is not for the mechanism {mechanism}")
    if mechanism is SaslMechanism.OAUTHBEARER:
        return SaslCredentials(mechanism=mechanism, options=module.options)
    if module.options.get("tokenauth", "false").lower() == "true":
        raise JaasError("asks for a delegation token, which is not supported")
    for option in ("username", "password"):
        if not module.options.get(option):
            raise JaasError(f"has no {option}")
    return SaslCredentials(
        mechanism=mechanism, username=module.options["username"], password=module.options["password"]
    )


def parse_login_module(text: str) -> LoginModule:
    """The one entry of a `sasl.jaas.config`. Raises JaasError."""
    if len(text) > TEXT_LENGTH_MAX:
        raise JaasError(f"is longer than {TEXT_LENGTH_MAX} characters")
    tokens = _tokens(text)
    class_name, flag = (_word(tokens, "the login module's class"), _word(tokens, "a control flag"))
    if flag.lower() not in FLAGS:
        raise JaasError(f"must have one of {', '.join(FLAGS)} after the class")
    options: dict[str, str] = {}
    while True:
        kind, name = next(tokens, ("end", ""))
        if (kind, name) == ("sign", ";"):
            break
        if kind == "end":
            raise JaasError("must end with ';'")
        if kind == "sign" or next(tokens, None) != ("sign", "="):
            raise JaasError("must hold name=value pairs and end with ';'")
        options[name] = _word(tokens, f"a value of {name}")
    if next(tokens, None) is not None:
        raise JaasError("must hold exactly one login module")
    return LoginModule(class_name, MappingProxyType(options))


def _word(tokens: Iterator[tuple[str, str]], what: str) -> str:
    kind, text = next(tokens, ("end", ""))
    if kind not in ("word", "quoted"):
        raise JaasError(f"lacks {what}")
    return text


def _tokens(text: str) -> Iterator[tuple[str, str]]:
    position = 0
    while position < len(text):
        match = _TOKEN.match(text, position)
        if match is None:
            # Only the place: what stands there may be part of a password that someone forgot to quote.
            raise JaasError(f"has an unquoted sign or an open quote at character {position + 1}")
        position = match.end()
        if match.lastgroup == "quoted":
            yield "quoted", _ESCAPE.sub(_unescape, match[0][1:-1])
        elif match.lastgroup in ("word", "sign"):
            yield match.lastgroup, match[0]


def _unescape(match: re.Match[str]) -> str:
    escaped = match[1]
    return chr(int(escaped, 8)) if escaped[0] in "01234567" else _ESCAPED.get(escaped, escaped)
