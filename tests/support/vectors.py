"""Golden bytes written by real brokers and plug-ins, shared beside the project and not part of it.

`TIDEGATE_VECTORS` names their folder; without it `../shared/vectors` beside the project is tried. A test that needs
an absent one skips and says so.
"""

from pathlib import Path

import pytest

from tests.support.needs import vectors_dir


def vector(*parts: str) -> Path:
    """A file or folder among the vectors; skips the calling test when it is absent."""
    path = vectors_dir().joinpath(*parts)
    if not path.exists():
        pytest.skip(f"shared vectors absent: {'/'.join(parts)} (set TIDEGATE_VECTORS)")
    return path
