"""JSON read by msgspec, against the reader of Python's library: the same rows, and the same values refused, and why."""

import json
from itertools import combinations
from typing import Any

import pyarrow as pa
from hypothesis import example, given
from hypothesis import strategies as st

from table.values.conversion import Converted, UndecodableError, convert
from table.values.json_schema import JsonDecoder, JsonSchema
from tests.support.drawn import drawn

NAMES = ("a", "b", "class", "__init__", "field0", "not an identifier", "", "é", "😀", "\u2028", "a.b", "$ref", "1")
ODD_NAMES = ('with"quote', "with\\backslash", "with\nline", "with\0nul", "\x7f")

numbers = st.one_of(
    st.integers(-(2**63) - 2, 2**63 + 2),
    st.integers(-(10**400), 10**400),
    st.floats(),
    st.sampled_from([2**53 + 1, 2**63, 2**64, 10**309, 1.0, -0.0, 1e18, 1e19, 9.3e18, float("inf"), float("nan")]),
)
leaves = st.one_of(st.none(), st.booleans(), numbers, st.text(max_size=5))
names = st.sampled_from([*NAMES, *ODD_NAMES])


def containers(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.lists(inner, max_size=3) | st.lists(st.tuples(names, inner), max_size=4).map(Members)


class Members(list[tuple[str, Any]]):
    """An object's members, of which several may have one name."""


def objects(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.dictionaries(names, inner, min_size=1, max_size=4).map(lambda found: {"properties": found})


schemas = st.recursive(
    st.sampled_from([{"type": name} for name in ("integer", "number", "string", "boolean")]) | st.just({}),
    lambda inner: (
        objects(inner)
        | inner.map(lambda item: {"type": "array", "items": item})
        | inner.map(lambda value: {"type": "object", "additionalProperties": value})
    ),
    max_leaves=6,
)
anything = st.recursive(leaves, containers, max_leaves=8)


def conforming(schema: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values of a schema, mostly: some are null, of another type, or have other members."""
    if "properties" in schema:
        known = [st.tuples(st.just(name), conforming(inner)) for name, inner in schema["properties"].items()]
        found: st.SearchStrategy[Any] = st.lists(st.one_of(*known, st.tuples(names, anything)), max_size=5).map(Members)
    elif "items" in schema:
        found = st.lists(conforming(schema["items"]), max_size=3)
    elif "additionalProperties" in schema:
        found = st.lists(st.tuples(names, conforming(schema["additionalProperties"])), max_size=3).map(Members)
    else:
        by_type = {"integer": st.integers(-100, 100), "number": numbers, "string": st.text(), "boolean": st.booleans()}
        found = by_type.get(schema.get("type", ""), anything)
    # Three in four.
    return st.one_of(found, found, found, st.none() | anything)


def text_of(value: Any, between: str, escapes: bool) -> str:
    """The value as JSON, with a name as often as it is a member's."""
    if isinstance(value, Members):
        members = (
            f"{json.dumps(name, ensure_ascii=escapes)}:{text_of(inner, between, escapes)}" for name, inner in value
        )
        return "{" + between + f"{between},".join(members) + "}"
    if isinstance(value, list):
        return "[" + f",{between}".join(text_of(inner, between, escapes) for inner in value) + "]"
    return json.dumps(value, ensure_ascii=escapes)


def damaged(draw: st.DrawFn, text: bytes) -> bytes:
    """The text with a part cut off, or other bytes in the middle of it."""
    if draw(st.integers(0, 7)):
        return text
    at = draw(st.integers(0, len(text)))
    garbage = [
        b"",
        b"\xff",
        b"\0",
        b"{}",
        b"null",
        b"\\ud800",
        b"\n",
        b"1.0",
        b"-0",
        b"0" * 4301,
        b"\xed\xa0\x80",
        b"NaN",
    ]
    return text[:at] + draw(st.sampled_from(garbage)) + text[draw(st.integers(at, len(text))) :]


@st.composite
def schemas_and_texts(draw: st.DrawFn) -> tuple[dict[str, Any], list[bytes]]:
    schema = draw(schemas)
    values = draw(st.lists(conforming(schema), min_size=1, max_size=6))
    between = draw(st.sampled_from(["", " ", "\r\n\t"]))
    escapes = draw(st.booleans())
    texts = [text_of(value, between, escapes).encode("utf-8", "surrogatepass") for value in values]
    return schema, [damaged(draw, text) for text in texts]


def read_singly(schema: JsonSchema, texts: list[bytes]) -> Converted:
    """As Python's library reads them."""

    def refused(name: str) -> None:
        raise UndecodableError(f"{name} is no JSON")

    load = json.JSONDecoder(parse_constant=refused).decode

    def decode(text: bytes) -> Any:
        found = load(text.decode("utf-8"))
        return None if found is None else schema.column.check(found)

    return convert(texts, decode, lambda found: pa.array(found, schema.type))


AN_INTEGER = {"properties": {"a": {"type": "integer"}}}


@drawn(300)
@given(schemas_and_texts())
@example(
    (AN_INTEGER, [b'{"a": 1, "a": 2}', b'{"a": 1, "a": null}', b'{"a": "x", "a": 2}', b'{"\\u0061": 3}', b'{"a": 1}{}'])
)
@example((AN_INTEGER, [b'\xef\xbb\xbf{"a": 1}', b' {"a": 1} \n', b'{"a": -0}', b"", b'{"a": 1}\0', b'{"x": "\xff"}']))
@example((AN_INTEGER, [b'{"x": "\\ud800"}', b'{"x": 1e999}', b'{"x": NaN}', b'{"x": 1' + b"0" * 4300 + b"}"]))
@example((AN_INTEGER, [b'{"a": %s}' % (b"9" * 4300), b'{"x": %s}' % (b"9" * 4301)]))
@example(({"type": "number"}, [b"-0", b"-0.0", b"1e999", b"1" + b"0" * 309, b"123456789012345678901234567890"]))
@example(({}, [b"-0", b"-0.0", b"1E5", b"1e999", b"1" + b"0" * 309, b'{"b": 1, "a": 2, "b": 3}', b'"\\ud83d\\ude00/"']))
@example((AN_INTEGER, [b'{"x": ' + b"[" * depth + b"]" * depth + b"}" for depth in (100, 100_000)]))
def test_rows_and_reasons_are_those_of_pythons_reader(case: tuple[dict[str, Any], list[bytes]]) -> None:
    schema, texts = JsonSchema(json.dumps(case[0])), case[1]
    # One that is refused makes all be read one by one. What stands alone, and it is good, is read the quick way.
    for some in (texts, *([text] for text in texts)):
        check_read(schema, some)


def test_what_is_an_object_only_together_with_its_neighbours_is_refused() -> None:
    """Given a text cut in three wherever that is, then each part is read as it would be alone."""
    schema, text = JsonSchema(json.dumps(AN_INTEGER)), b'{"x":[{"y":"}{"},{}],"a":1}{}{"a":2}'
    for first, second in combinations(range(1, len(text)), 2):
        check_read(schema, [text[:first], text[first:second], text[second:]])


def check_read(schema: JsonSchema, texts: list[bytes]) -> None:
    array, reasons = JsonDecoder(schema).decode(pa.array(texts, pa.binary()), None, whole=True)
    array.validate(full=True)
    wanted, wanted_reasons = read_singly(schema, texts)
    assert (array.type, reasons) == (schema.type, wanted_reasons)
    # As text: NaN is equal to NaN then, and -0.0 is not 0.0.
    assert [repr(row) for row in array.to_pylist()] == [repr(row) for row in wanted.to_pylist()]
