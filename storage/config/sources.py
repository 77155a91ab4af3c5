"""Where values come from, which one counts (environment over FILE over broker.config), and what it is, typed.

- FILE holds only keys of the table, of other programs, of plug-ins and declared providers: anything else is a problem
  that names the nearest right key, because a misspelt limit that is silently ignored is worse than a start that fails.
  No variable of a stranger's or of another program's key is looked up.
- The broker's file may hold strangers. Taken from it are the table's keys that say so (`of_broker`), and the plug-ins'.
- In the environment a key is `TIDEGATE_` + its name in capitals, `.` → `_`, `_` → `__`, `-` → `___`. Capitals lose a
  key's own case, so a variable is first matched against the keys that are known (our table, and what the files hold)
  and only else spelled back, in small letters.
- A wrong value is reported and its default goes on in its place, so that one start reports all problems. The
  configuration made from such values is thrown away.
"""

import difflib
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeVar

from storage.config.java_properties import (
    BYTE_ORDER_MARKS,
    PROVIDERS_KEY,
    VARIABLE,
    PropertiesError,
    Property,
    Resolver,
    UnresolvedVariableError,
    has_variable,
    read_properties,
)
from storage.config.keys import OLD_NAMES_END, Key, KeyTable, keys_of
from storage.config.masking import HIDDEN, may_be_shown, sounds_secret, without_credentials

if TYPE_CHECKING:
    from _typeshed import DataclassInstance


G = TypeVar("G", bound="DataclassInstance")

BROKER_CONFIG: Final = "broker.config"
STORAGE_PREFIX: Final = "remote.log.storage.manager.impl.prefix"
METADATA_PREFIX: Final = "remote.log.metadata.manager.impl.prefix"

# The metadata topic's clients. Kafka reads them under the metadata prefix (TopicBasedRemoteLogMetadataManagerConfig);
# bare ones are taken too, and the prefixed ones win.
COMMON_CLIENT_PREFIX: Final = "remote.log.metadata.common.client."
CONSUMER_PREFIX: Final = "remote.log.metadata.consumer."
PRODUCER_PREFIX: Final = "remote.log.metadata.producer."
CLIENT_PREFIXES: Final = (COMMON_CLIENT_PREFIX, CONSUMER_PREFIX, PRODUCER_PREFIX)

VARIABLE_PREFIX: Final = "TIDEGATE_"
# Where FILE is, and switches of our own test suite and tools: no key, and no one should be warned of them.
NOT_CONFIGURATION: Final = frozenset(
    {
        "TIDEGATE_CONFIG",
        "TIDEGATE_DIFFERENTIAL_QUESTIONS",
        "TIDEGATE_HYPOTHESIS_PROFILE",
        "TIDEGATE_OFFLINE",
        "TIDEGATE_REQUIRE_ALL",
        "TIDEGATE_VECTORS",
    }
)
_TO_VARIABLE: Final = {".": "_", "_": "__", "-": "___"}
_FROM_VARIABLE: Final = {"_": ".", "__": "_", "___": "-"}


class ConfigError(Exception):
    """The configuration cannot be used. `problems` holds every one found, one line each, without secrets."""

    def __init__(self, problems: Iterable[str]) -> None:
        self.problems: tuple[str, ...] = tuple(problems)
        super().__init__("\n".join(self.problems))


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that someone gave. `text` None: its variable could not be resolved, and `problem` says why."""

    text: str | None = field(repr=False)
    raw: str = field(repr=False)
    origin: str
    folder: Path
    """What a relative path is relative to: the folder of the file, or the working folder for the environment."""
    problem: str | None = None
    """Reported only if no stronger source gives the key: what nobody uses need not be found."""

    def unquoted(self, name: str) -> "Setting":
        """The same, or a problem where somebody has put it in quotes, as a shell wants it. A password may have some."""
        text = (self.text or "").strip()
        if len(text) < 2 or text[0] not in "\"'" or text[0] != text[-1] or sounds_secret(name):
            return self
        problem = f"{self.origin}: {name} is in quotes, which would be part of the value: leave them out"
        return replace(self, text=None, problem=problem)

    def masked(self, name: str, key: Key | None) -> str:
        """The value as it may be shown (`storage.config.masking`). `key` is the table's entry, None for a plug-in's.

        A plug-in's value that comes out of a provider is shown as it was written (`${file:…}`): what someone keeps
        outside the file is not for printing, whatever its key is called.
        """
        is_looked_up = key is None and has_variable(self.raw)
        if key is not None and key.secret:
            return HIDDEN
        if key is None and not may_be_shown(name) and VARIABLE.fullmatch(self.raw) is None:
            return HIDDEN
        return without_credentials(self.raw if self.text is None or is_looked_up else self.text)


@dataclass(slots=True)
class Settings:
    """The strongest value of each key: of the table by its canonical name, of the plug-ins by their own names.

    A plug-in sees its keys with the prefix off, as in Kafka.
    """

    table: dict[str, Setting] = field(default_factory=dict)
    storage: dict[str, Setting] = field(default_factory=dict)
    metadata: dict[str, Setting] = field(default_factory=dict)
    storage_prefix: str = ""
    metadata_prefix: str = ""
    warnings: list[str] = field(default_factory=list)
    lacks_broker_file: bool = False
    """It is named and cannot be read, which a warning says."""

    def plugin_of(self, name: str) -> tuple[dict[str, Setting], str] | None:
        """The plug-in's settings that a key belongs to, and what that plug-in calls it; None: no plug-in's."""
        for settings, prefix in ((self.storage, self.storage_prefix), (self.metadata, self.metadata_prefix)):
            if name.startswith(prefix) and len(name) > len(prefix):
                return settings, name[len(prefix) :]
        if any(name.startswith(prefix) and len(name) > len(prefix) for prefix in CLIENT_PREFIXES):
            return self.metadata, name
        return None

    def warn_if_moved(self, key: Key, name: str, setting: Setting) -> None:
        """Note that a key has another name now; the old one acts all the same."""
        if name == key.old_name:
            self.warnings.append(f"{setting.origin}: {name} is {key.name} now; the old name ends with {OLD_NAMES_END}")

    def is_bare(self, name: str) -> bool:
        """Return whether a metadata client's key is written without the metadata prefix, so that the prefixed one
        wins."""
        found = self.plugin_of(name)
        return found is not None and found[1] == name

    def plugins(self) -> dict[str, Setting]:
        """Return what was given to both plug-ins, by whole key."""
        storage = {self.storage_prefix + name: setting for name, setting in self.storage.items()}
        return storage | {self.metadata_prefix + name: setting for name, setting in self.metadata.items()}


class Values:
    """The table's keys for one start, typed. `problems` grows, and the settings' warnings do."""

    def __init__(self, table: KeyTable, settings: Settings, problems: list[str]) -> None:
        self.problems = problems
        self.warnings = settings.warnings
        self.derived: dict[str, str] = {}
        """What keys without a value of their own got from others, as it may be shown."""
        self._table = table
        self._settings = settings.table
        self._lacks_broker_file = settings.lacks_broker_file
        self._values = {key.name: self._parsed(key) for key in table.keys}

    def __getitem__(self, name: str) -> Any:
        """The value given or the default; None when there is neither, or a required key is missing."""
        return self._values[name]

    def is_set(self, name: str) -> bool:
        """Return whether someone gave this key, rightly or wrongly."""
        return name in self._settings

    def place(self, name: str) -> str:
        """A key that somebody gave, and where."""
        return f"{name}, {self._settings[name].origin}"

    def derive(self, name: str, value: object, shown: str | None = None) -> None:
        """Give a key that has no value one that follows from others; `shown` None: it is shown as unset."""
        if self._values[name] is None:
            self._values[name] = value
            if shown is not None:
                self.derived[name] = shown

    def group(self, group: type[G], **others: object) -> G:
        """A group of keys with its values; `others` are the fields that are no keys."""
        make: Callable[..., G] = group
        return make(**{field: self._values[key.name] for field, key in keys_of(group).items()}, **others)

    def wrong(self, name: str, reason: str) -> None:
        """Note a problem with a key, also one whose text was fine by itself."""
        setting = self._settings.get(name)
        shown = "" if setting is None else f" = {setting.masked(name, self._table.by_name[name])}"
        self.problems.append(f"{'' if setting is None else f'{setting.origin}: '}{name}{shown}: {reason}")

    def _parsed(self, key: Key) -> Any:
        setting = self._settings.get(key.name)
        if setting is None and key.required and not (key.of_broker and self._lacks_broker_file):
            is_brokers = key.of_broker and not self.is_set(BROKER_CONFIG)
            hint = f" Or set {BROKER_CONFIG} to the broker's file, which has it." if is_brokers else ""
            self.problems.append(f"{key.name} is required: {key.doc}{hint}")
        if setting is None or setting.text is None:
            return key.default_value
        try:
            # A password may begin or end with a blank; nothing else here can.
            value = key.kind.parse(setting.text if key.secret else setting.text.strip())
        except ValueError as error:
            self.wrong(key.name, str(error))
            return key.default_value
        return setting.folder / value if isinstance(value, Path) else value


def variable_name(key: str) -> str:
    """The variable that sets a key: `cache.disk.bytes` → `TIDEGATE_CACHE_DISK_BYTES`."""
    return VARIABLE_PREFIX + re.sub(r"[._-]", lambda match: _TO_VARIABLE[match[0]], key).upper()


def key_name(variable: str) -> str:
    """The key that a variable spells, in small letters.

    Exact for every key without capitals and without two of `.`, `_`, `-` in a row. A longer run of underscores is
    read in threes from its left.
    """
    spelled = variable.removeprefix(VARIABLE_PREFIX).lower()
    return re.sub(r"_{1,3}", lambda match: _FROM_VARIABLE[match[0]], spelled)


def gather(
    file: Path | Mapping[str, str], environ: Mapping[str, str], table: KeyTable, problems: list[str]
) -> Settings:
    """Return what the environment, FILE and the broker's file give to the keys of `table` and to the plug-ins.

    What is wrong is appended to `problems`; ConfigError is raised only if FILE cannot be read.

    Args:
        file: FILE, or the keys that it would have; paths are then relative to the working folder.
    """
    try:
        own = _File(file.name if isinstance(file, Path) else "config", file, environ, is_ours=True)
    except PropertiesError as error:
        raise ConfigError([str(error)]) from error
    if next(iter(own.properties), "").startswith(BYTE_ORDER_MARKS):
        raise ConfigError(
            [f"{file}: begins with a byte order mark, as some editors write: save it as UTF-8 without one"]
        )
    variables = {
        name: Setting(value, value, f"environment {name}", Path.cwd()).unquoted(name)
        for name, value in sorted(environ.items())
        if name.startswith(VARIABLE_PREFIX) and name not in NOT_CONFIGURATION
    }
    broker = _broker_file(own, variables, environ, problems)
    settings = Settings(warnings=own.repeated_keys(table))
    settings.lacks_broker_file = broker is None and bool(problems)
    if broker is not None:
        _take_prefixes(broker, {}, table, settings, problems)
        settings.table = {
            key.name: setting for key in table.keys if key.of_broker and (setting := broker.setting(key.name))
        }
        _take_plugin_keys(broker, table, settings)
    _take_prefixes(own, variables, table, settings, problems)
    _take_own(own, table, settings, problems)
    _take_environment(variables, table, settings)
    taken = (*settings.table.values(), *settings.plugins().values())
    problems += [setting.problem for setting in taken if setting.problem is not None]
    return settings


def read_settings(path: Path, environ: Mapping[str, str], problems: list[str]) -> dict[str, Setting]:
    """Every key of a properties file that is another program's, its variables resolved; what is wrong is noted.

    Raises:
        ConfigError: it cannot be read.
    """
    try:
        file = _File(path.name, path, environ)
    except PropertiesError as error:
        raise ConfigError([str(error)]) from error
    settings = {name: setting for name in file.properties if (setting := file.setting(name)) is not None}
    problems += [setting.problem for setting in settings.values() if setting.problem is not None]
    return settings


class _File:
    """A properties file, or its keys alone, with its providers; a value is resolved once, when it is asked for."""

    def __init__(
        self, label: str, source: Path | Mapping[str, str], environ: Mapping[str, str], *, is_ours: bool = False
    ) -> None:
        """Raises PropertiesError."""
        self.label = label
        self._is_ours = is_ours
        if isinstance(source, Path):
            self.properties, self.folder = read_properties(source), source.absolute().parent
        else:
            self.properties = {name: Property(text, ()) for name, text in source.items()}
            self.folder = Path.cwd()
        self._resolver = Resolver({name: p.text for name, p in self.properties.items()}, environ, self.folder)
        self._resolved: dict[str, Setting] = {}

    def setting(self, name: str) -> Setting | None:
        if name in self.properties and name not in self._resolved:
            self._resolved[name] = self._resolve(name)
        return self._resolved.get(name)

    def _resolve(self, name: str) -> Setting:
        given = self.properties[name]
        origin = f"{self.label}:{given.lines[-1]}" if given.lines else self.label
        try:
            setting = Setting(self._resolver.resolve(given.text), given.text, origin, self.folder)
        except UnresolvedVariableError as error:
            return Setting(None, given.text, origin, self.folder, problem=f"{origin}: {name}: {error}")
        return setting.unquoted(name) if self._is_ours else setting

    def repeated_keys(self, table: KeyTable) -> list[str]:
        return [
            f"{self.label}: {name} is given in lines {', '.join(map(str, given.lines))}; the last one counts"
            for name, given in self.properties.items()
            if len(given.lines) > 1 and not table.is_anothers(name)
        ]


def _broker_file(
    own: _File, variables: Mapping[str, Setting], environ: Mapping[str, str], problems: list[str]
) -> _File | None:
    setting = variables.get(variable_name(BROKER_CONFIG)) or own.setting(BROKER_CONFIG)
    if setting is None or not setting.text:
        return None
    path = setting.folder / setting.text.strip()
    try:
        return _File(f"broker.config {path.name}", path, environ)
    except PropertiesError as error:
        problems.append(f"{setting.origin}: {BROKER_CONFIG}: {error}")
        return None


def _take_prefixes(
    file: _File, variables: Mapping[str, Setting], table: KeyTable, settings: Settings, problems: list[str]
) -> None:
    def prefix(name: str, inherited: str) -> str:
        default = table.by_name[name].default or ""
        setting = variables.get(variable_name(name)) or file.setting(name)
        if setting is None or setting.text is None:
            return inherited or default
        if not setting.text.strip():
            problems.append(f"{setting.origin}: {name} must not be empty: every key would be the plug-in's")
            return default
        return setting.text.strip()

    settings.storage_prefix = prefix(STORAGE_PREFIX, settings.storage_prefix)
    settings.metadata_prefix = prefix(METADATA_PREFIX, settings.metadata_prefix)


def _take_plugin_keys(file: _File, table: KeyTable, settings: Settings) -> None:
    # Bare client keys first, so that the prefixed ones of the same file overwrite them.
    for name in sorted(file.properties, key=settings.is_bare, reverse=True):
        plugin = settings.plugin_of(name)
        setting = file.setting(name) if plugin is not None and name not in table.by_name else None
        if plugin is not None and setting is not None:
            plugin[0][plugin[1]] = setting


def _take_own(own: _File, table: KeyTable, settings: Settings, problems: list[str]) -> None:
    taken: dict[str, str] = {}
    for name in own.properties:
        plugin = settings.plugin_of(name)
        if plugin is None and table.is_anothers(name):
            continue
        setting = own.setting(name)
        key = table.by_name.get(name)
        if key is not None and setting is not None:
            if key.name in taken and settings.table[key.name].text != setting.text:
                problems.append(f"{setting.origin}: {name} contradicts {taken[key.name]}: keep one of them")
            taken[key.name] = name
            settings.table[key.name] = setting
            settings.warn_if_moved(key, name, setting)
        elif setting is not None and plugin is None and not f"{name}.".startswith(f"{PROVIDERS_KEY}."):
            nearest = table.nearest(name, (settings.storage_prefix, settings.metadata_prefix))
            hint = "" if nearest is None else f"; the nearest is {nearest}"
            problems.append(
                f"{setting.origin}: unknown key {name}{hint}"
                " (a broker's own keys belong in the file that broker.config names)"
            )
    _take_plugin_keys(own, table, settings)


def _take_environment(variables: Mapping[str, Setting], table: KeyTable, settings: Settings) -> None:
    known = {variable_name(name): name for name in (*table.by_name, *settings.plugins())}
    for variable, setting in variables.items():
        name = known.get(variable) or key_name(variable)
        key, plugin = table.by_name.get(name), settings.plugin_of(name)
        if key is not None:
            settings.table[key.name] = setting
            settings.warn_if_moved(key, name, setting)
        elif plugin is not None:
            plugin[0][plugin[1]] = setting
        elif not table.is_anothers(name):
            # A warning only: Kubernetes injects some of our prefix.
            near = difflib.get_close_matches(variable, map(variable_name, table.by_name), n=1, cutoff=0.85)
            hint = f"; the nearest is {near[0]}" if near else ""
            settings.warnings.append(f"environment variable {variable} names no key and is ignored{hint}")
