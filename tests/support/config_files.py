"""A configuration in a test: a few lines over the smallest FILE that loads."""

from collections.abc import Mapping
from pathlib import Path

import pytest

from storage.config import ConfigError
from tests.support.tier_config_files import tier_file
from tidegate.config import Config, load


def load_lines(folder: Path, lines: str, *, environ: Mapping[str, str] | None = None, minimal: bool = True) -> Config:
    """The Config of `folder/tidegate.properties` with these lines after the minimal ones."""
    return load(tier_file(folder, lines, minimal=minimal), environ or {})


def problems_of(
    folder: Path, lines: str, *, environ: Mapping[str, str] | None = None, minimal: bool = True
) -> tuple[str, ...]:
    """The problems that make the same configuration fail."""
    with pytest.raises(ConfigError) as caught:
        load_lines(folder, lines, environ=environ, minimal=minimal)
    return caught.value.problems


def shown(config: Config, name: str) -> tuple[str, str]:
    """(value, origin) of a key as `check` shows it."""
    (key,) = (key for key in config.effective if key.name == name)
    return key.value, key.origin
