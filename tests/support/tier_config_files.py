"""A tier's configuration in a test: a few lines over the smallest FILE that loads."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from storage.config import ConfigError, TierClientConfig, load_tier_config

MINIMAL = "upstream.bootstrap.servers=broker:9092\nremote.log.storage.manager.class.name=tidegate.PlainObjects\n"


def tier_file(folder: Path, lines: str, *, minimal: bool = True) -> Path:
    """`folder/tidegate.properties` with these lines after the minimal ones."""
    file = folder / "tidegate.properties"
    file.write_text((MINIMAL if minimal else "") + lines, encoding="latin-1")
    return file


def load_tier_lines(
    folder: Path, lines: str, *, environ: Mapping[str, str] | None = None, minimal: bool = True
) -> TierClientConfig:
    """The tier's part of such a file."""
    return load_tier_config(tier_file(folder, lines, minimal=minimal), environ or {})


def tier_problems_of(
    folder: Path, lines: str, *, environ: Mapping[str, str] | None = None, minimal: bool = True
) -> tuple[str, ...]:
    """The problems that make the same configuration fail."""
    with pytest.raises(ConfigError) as caught:
        load_tier_lines(folder, lines, environ=environ, minimal=minimal)
    return caught.value.problems
