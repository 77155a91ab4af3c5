"""One test that loops where a table of ids would say nothing: like `parametrize`, but it is one cell.

    @for_each("version", range(4, 19))
    def test_unknown_tags_survive(version: int) -> None: ...

    @for_each("version, unknown_tag", product(VERSIONS, (False, True)))

What other tests get as fixtures may stand beside the names; it is the same in every turn.
"""

import functools
import inspect
from collections.abc import Callable, Iterable
from typing import Any

from tests.support.cases import case

Test = Callable[..., None]


def for_each(names: str, cases: Iterable[Any]) -> Callable[[Test], Test]:
    """Run the test with each case under that name, or with each tuple under those names; a failure names its case."""
    of_case, every = names.split(", "), tuple(cases)
    assert every, "a loop without a turn shows nothing"

    def looped(test: Test) -> Test:
        @functools.wraps(test)
        def run(*args: Any, **fixtures: Any) -> None:
            for values in every:
                named = dict(zip(of_case, values if len(of_case) > 1 else (values,), strict=True))
                with case(*named.values()):
                    test(*args, **fixtures, **named)

        signature = inspect.signature(test)
        kept = [each for each in signature.parameters.values() if each.name not in of_case]
        run.__signature__ = signature.replace(parameters=kept)  # type: ignore[attr-defined]  # what pytest reads
        return run

    return looped
