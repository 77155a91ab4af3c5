from tools.demo.reading import Headers, TopicDigest

Fields = tuple[int, int, bytes | None, bytes | None, Headers]

RECORD: Fields = (0, 7, b"key", b"value", [("name", b"content")])


def digest_of(*records: Fields) -> str:
    digest = TopicDigest({0: 0, 1: 0})
    for record in records:
        digest.add(*record)
    return digest.hexdigest()


OTHERS: list[Fields] = [
    (1, 7, b"key", b"value", [("name", b"content")]),
    (0, 8, b"key", b"value", [("name", b"content")]),
    (0, 7, b"keyv", b"alue", [("name", b"content")]),
    (0, 7, b"key", b"valu", [("name", b"content")]),
    (0, 7, None, b"value", [("name", b"content")]),
    (0, 7, b"key", b"value", []),
    (0, 7, b"key", b"value", [("namec", b"ontent")]),
    (0, 7, b"key", b"value", [("name", None)]),
    (0, 7, b"key", b"value", [("name", b"content"), ("name", b"content")]),
]


def test_the_digest_sees_every_field() -> None:
    assert digest_of(RECORD) == digest_of(RECORD)
    for other in OTHERS:
        assert digest_of(other) != digest_of(RECORD), other
