"""How many examples Hypothesis draws: all in `make test-all`, three in ten of them in `make test`."""

import os
from typing import Any, Final

from hypothesis import settings

QUICK_SHARE: Final = 0.3
_EXAMPLES_MIN: Final = 5


def drawn(examples: int, **others: Any) -> settings:
    """Settings of one test: so many examples where all are drawn. `others`: Hypothesis' own."""
    profile = os.environ.get("TIDEGATE_HYPOTHESIS_PROFILE")
    if profile == "deep":
        examples = max(examples, settings().max_examples)
    elif profile == "quick":
        examples = max(_EXAMPLES_MIN, round(examples * QUICK_SHARE))
    return settings(max_examples=examples, **others)
