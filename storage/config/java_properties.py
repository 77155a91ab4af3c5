r"""A Java properties file as Kafka reads one: its keys with their lines, and the variables in their values.

- Latin-1, as Java's Properties.load reads a stream: the broker's file then means the same to both, and a character
  beyond it is written `\uXXXX`. If a key is given twice, the last one counts, as in Java; the earlier lines are kept
  for a warning.
- `${env:NAME}`, `${file:path:key}`, `${dir:path:file}`: the forms of Kafka's configuration providers, and that a
  value may hold several, are its ConfigTransformer's; one pass, so what a variable holds is not looked into again.
  `${NAME}` without a provider is left alone, as Kafka leaves it.
- The names env, file and dir always work; `config.providers` may declare others for Kafka's three classes.
- Kafka leaves a variable that cannot be found in place. Here it is an error: a password that reads `${env:PW}` would
  only fail much later, at the broker.
- `config.providers.<name>.param.*` (Kafka's allow-lists) guard a Connect worker against its users. Who writes this
  file starts this process too, so they are accepted and have no effect.
"""

import io
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage.limited_files import UnreadableFileError, read_limited

FILE_BYTES_MAX: Final = 4 * 1024 * 1024  # a broker's file is a few KiB; inline PEM chains make it tens
VALUE_BYTES_MAX: Final = 1024 * 1024

PROVIDERS_KEY: Final = "config.providers"
PROVIDER_CLASSES: Final = {
    "org.apache.kafka.common.config.provider.EnvVarConfigProvider": "env",
    "org.apache.kafka.common.config.provider.FileConfigProvider": "file",
    "org.apache.kafka.common.config.provider.DirectoryConfigProvider": "dir",
}

_LINE_END = re.compile(r"\r\n|\r|\n")
BYTE_ORDER_MARKS: Final = ("\xef\xbb\xbf", "\xff\xfe", "\xfe\xff")  # of UTF-8 and UTF-16, read as Latin-1
# Kafka's own pattern (ConfigTransformer.DEFAULT_PATTERN): provider, optional path, key.
VARIABLE = re.compile(r"\$\{([^}]*?):(([^}]*?):)?([^}]*?)\}")


class PropertiesError(Exception):
    """The file cannot be read or is no properties file; the message names file and reason."""


class UnresolvedVariableError(Exception):
    """A variable cannot be looked up; the message names it and the reason, never a value."""


@dataclass(frozen=True, slots=True)
class Property:
    """One key as written, before placeholders are resolved. `lines` are all lines that give it, the last one counts."""

    text: str
    lines: tuple[int, ...]


def read_properties(path: Path) -> dict[str, Property]:
    """All keys of a file.

    Raises PropertiesError if it cannot be read, is larger than FILE_BYTES_MAX or holds a bad escape.
    """
    import javaproperties  # a tenth of a second, which a configuration that is no file can do without

    try:
        data = read_limited(path, FILE_BYTES_MAX)
    except UnreadableFileError as error:
        raise PropertiesError(f"{path}: {error}") from error
    properties: dict[str, Property] = {}
    line = 1
    try:
        for item in javaproperties.parse(io.BytesIO(data)):
            if isinstance(item, javaproperties.KeyValue):
                earlier = properties[item.key].lines if item.key in properties else ()
                properties[item.key] = Property(item.value, (*earlier, line))
            line += len(_LINE_END.findall(item.source)) or 1
    except javaproperties.InvalidUEscapeError as error:
        raise PropertiesError(f"{path}:{line}: bad escape {error.escape!r}: must be \\uXXXX") from error
    return properties


class Resolver:
    """Looks up the variables in one file's values."""

    def __init__(self, texts: Mapping[str, str], environ: Mapping[str, str], folder: Path) -> None:
        """`texts`: the file's keys and unresolved values. `folder`: the file's own, for relative paths."""
        self._environ = environ
        self._folder = folder
        # Provider name → env, file, dir, or the class name of one that we do not have.
        self._kinds = {"env": "env", "file": "file", "dir": "dir"}
        for name in (name.strip() for name in texts.get(PROVIDERS_KEY, "").split(",")):
            class_name = texts.get(f"{PROVIDERS_KEY}.{name}.class", "").strip()
            if name and class_name:
                self._kinds[name] = PROVIDER_CLASSES.get(class_name, class_name)

    def resolve(self, text: str) -> str:
        """The text with every variable replaced. Raises UnresolvedVariableError."""
        return VARIABLE.sub(self._look_up, text)

    def _look_up(self, match: re.Match[str]) -> str:
        variable, provider, path, key = match[0], match[1], match[3] or "", match[4]
        kind = self._kinds.get(provider)
        if kind is None:
            raise UnresolvedVariableError(f"{variable}: no provider {provider!r}: use env, file or dir")
        if kind == "env":
            return self._environment(variable, path, key)
        if kind == "file":
            return self._file(variable, path, key)
        if kind == "dir":
            return self._directory(variable, path, key)
        raise UnresolvedVariableError(f"{variable}: provider class {kind} is not one of Kafka's own three")

    def _environment(self, variable: str, path: str, key: str) -> str:
        if path:
            raise UnresolvedVariableError(f"{variable}: must be ${{env:NAME}}")
        if key not in self._environ:
            raise UnresolvedVariableError(f"{variable}: environment variable {key} is not set")
        return self._environ[key]

    def _file(self, variable: str, path: str, key: str) -> str:
        if not path:
            raise UnresolvedVariableError(f"{variable}: must be ${{file:path:key}}")
        try:
            properties = read_properties(self._folder / path)
        except PropertiesError as error:
            raise UnresolvedVariableError(f"{variable}: {error}") from error
        if key not in properties:
            raise UnresolvedVariableError(f"{variable}: {self._folder / path} has no key {key}")
        return properties[key].text

    def _directory(self, variable: str, path: str, key: str) -> str:
        if not path or not key or Path(key).name != key:
            raise UnresolvedVariableError(f"{variable}: must be ${{dir:path:file}}")
        file = self._folder / path / key
        try:
            text = read_limited(file, VALUE_BYTES_MAX).decode("utf-8")
        except UnreadableFileError as error:
            raise UnresolvedVariableError(f"{variable}: {file} {error}") from error
        except UnicodeDecodeError as error:
            raise UnresolvedVariableError(f"{variable}: {file} is not UTF-8") from error
        # `echo secret > file` leaves a line end that no password has; Kafka would keep it.
        return text.removesuffix("\n").removesuffix("\r")


def has_variable(text: str) -> bool:
    """Return whether a value is looked up elsewhere, wholly or in part."""
    return VARIABLE.search(text) is not None
