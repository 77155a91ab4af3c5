"""Kafka's configuration providers: `${env:NAME}`, `${file:path:key}`, `${dir:path:file}` inside values.

- The forms, and that a value may hold several, are Kafka's ConfigTransformer's; one pass, so what a variable holds is
  not looked into again. `${NAME}` without a provider is left alone, as Kafka leaves it.
- The names env, file and dir always work; `config.providers` may declare others for Kafka's three classes.
- Kafka leaves a variable that cannot be found in place. Here it is an error: a password that reads `${env:PW}` would
  only fail much later, at the broker.
- `config.providers.<name>.param.*` (Kafka's allow-lists) guard a Connect worker against its users. Who writes this
  file starts this process too, so they are accepted and have no effect.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from storage.config.properties_file import PropertiesError, read_properties

PROVIDERS_KEY: Final = "config.providers"
VALUE_BYTES_MAX: Final = 1024 * 1024

CLASSES: Final = {
    "org.apache.kafka.common.config.provider.EnvVarConfigProvider": "env",
    "org.apache.kafka.common.config.provider.FileConfigProvider": "file",
    "org.apache.kafka.common.config.provider.DirectoryConfigProvider": "dir",
}

# Kafka's own pattern (ConfigTransformer.DEFAULT_PATTERN): provider, optional path, key.
_VARIABLE = re.compile(r"\$\{([^}]*?):(([^}]*?):)?([^}]*?)\}")


class UnresolvedVariableError(Exception):
    """A variable cannot be looked up; the message names it and the reason, never a value."""


@dataclass(frozen=True, slots=True)
class Resolver:
    """Looks up the variables in one file's values. Relative paths are relative to `folder`, that of the file."""

    environ: Mapping[str, str]
    folder: Path
    kinds: Mapping[str, str]
    """Provider name → env, file, dir, or the class name of one that we do not have."""

    def resolve(self, text: str) -> str:
        """The text with every variable replaced. Raises UnresolvedVariableError."""
        return _VARIABLE.sub(self._look_up, text)

    def _look_up(self, match: re.Match[str]) -> str:
        variable, provider, path, key = match[0], match[1], match[3] or "", match[4]
        kind = self.kinds.get(provider)
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
        if key not in self.environ:
            raise UnresolvedVariableError(f"{variable}: environment variable {key} is not set")
        return self.environ[key]

    def _file(self, variable: str, path: str, key: str) -> str:
        if not path:
            raise UnresolvedVariableError(f"{variable}: must be ${{file:path:key}}")
        try:
            properties = read_properties(self.folder / path)
        except PropertiesError as error:
            raise UnresolvedVariableError(f"{variable}: {error}") from error
        if key not in properties:
            raise UnresolvedVariableError(f"{variable}: {self.folder / path} has no key {key}")
        return properties[key].text

    def _directory(self, variable: str, path: str, key: str) -> str:
        if not path or not key or Path(key).name != key:
            raise UnresolvedVariableError(f"{variable}: must be ${{dir:path:file}}")
        file = self.folder / path / key
        try:
            with file.open("rb") as stream:
                data = stream.read(VALUE_BYTES_MAX + 1)
            if len(data) > VALUE_BYTES_MAX:
                raise UnresolvedVariableError(f"{variable}: {file} is larger than {VALUE_BYTES_MAX} bytes")
            text = data.decode("utf-8")
        except OSError as error:
            raise UnresolvedVariableError(f"{variable}: {file} cannot be read: {error.strerror}") from error
        except UnicodeDecodeError as error:
            raise UnresolvedVariableError(f"{variable}: {file} is not UTF-8") from error
        # `echo secret > file` leaves a line end that no password has; Kafka would keep it.
        return text.removesuffix("\n").removesuffix("\r")


def resolver(texts: Mapping[str, str], environ: Mapping[str, str], folder: Path) -> Resolver:
    """The resolver for a file whose keys and unresolved values are `texts`."""
    kinds = {"env": "env", "file": "file", "dir": "dir"}
    for name in (name.strip() for name in texts.get(PROVIDERS_KEY, "").split(",")):
        class_name = texts.get(f"{PROVIDERS_KEY}.{name}.class", "").strip()
        if name and class_name:
            kinds[name] = CLASSES.get(class_name, class_name)
    return Resolver(environ, folder, kinds)


def has_variable(text: str) -> bool:
    """Whether a value is looked up elsewhere, wholly or in part."""
    return _VARIABLE.search(text) is not None


def is_provider_key(name: str) -> bool:
    """Whether a key belongs to the declaration of providers."""
    return name == PROVIDERS_KEY or name.startswith(f"{PROVIDERS_KEY}.")
