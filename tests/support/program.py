"""Which Tidegate the tests start: that of the tree, or an installed one (tests/installed)."""

import os
import sys

PYTHON_VARIABLE = "TESTED_PYTHON"
"""Names the Python of an environment that Tidegate is installed in; `make test-installed` sets it."""


def tested_python() -> str:
    """The Python that has the Tidegate to be tested; that of the tests without another word."""
    return os.environ.get(PYTHON_VARIABLE) or sys.executable
