"""Names the case of a loop in the failure of what it holds.

for cut in range(34):
    with case(cut), pytest.raises(CorruptObjectError):
        parse(data[:cut])
"""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def case(*what: object) -> Iterator[None]:
    try:
        yield
    except BaseException as error:
        error.add_note(f"case: {', '.join(ascii(each)[:200] for each in what)}")
        raise
