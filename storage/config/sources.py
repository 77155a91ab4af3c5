"""Where values come from, and which one counts: environment over FILE over broker.config.

FILE holds only keys of the table, of other programs, of plug-ins and declared providers: anything else is a problem
that names the nearest right key, because a misspelt limit that is silently ignored is worse than a start that fails.
Only the broker's file may hold strangers. No variable of a stranger's or of another program's key is looked up.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from storage.config import environment, keys
from storage.config import tier_keys as tier
from storage.config.broker_config import TABLE_KEYS_TAKEN, Plugin, PluginPrefixes
from storage.config.errors import ConfigError
from storage.config.key_table import KeyTable
from storage.config.kinds import Key
from storage.config.properties_file import PropertiesError, Property, read_properties
from storage.config.providers import Resolver, UnresolvedVariableError, is_provider_key, resolver


@dataclass(frozen=True, slots=True)
class Setting:
    """A value that someone gave. `text` None: its variable could not be resolved, which has been reported."""

    text: str | None = field(repr=False)
    raw: str = field(repr=False)
    origin: str
    folder: Path
    """What a relative path is relative to: the folder of the file, or the working folder for the environment."""


@dataclass(slots=True)
class Settings:
    """The strongest value of each key: of the table by its canonical name, of the plug-ins by their own names."""

    table: dict[str, Setting] = field(default_factory=dict)
    storage: dict[str, Setting] = field(default_factory=dict)
    metadata: dict[str, Setting] = field(default_factory=dict)
    prefixes: PluginPrefixes = field(default_factory=lambda: PluginPrefixes("", ""))
    warnings: list[str] = field(default_factory=list)

    def plugin(self, plugin: Plugin) -> dict[str, Setting]:
        return self.storage if plugin is Plugin.STORAGE else self.metadata


def gather(path: Path, environ: Mapping[str, str], table: KeyTable, problems: list[str]) -> Settings:
    """What the environment, FILE and the broker's file give to the keys of `table` and to the plug-ins.

    What is wrong is appended to `problems`; ConfigError is raised only if FILE cannot be read.
    """
    try:
        own = _File(path.name, path, read_properties(path), environ, problems)
    except PropertiesError as error:
        raise ConfigError([str(error)]) from error
    variables = {
        name: Setting(value, value, f"environment {name}", Path.cwd())
        for name, value in sorted(environ.items())
        if name.startswith(environment.PREFIX) and name not in environment.NOT_CONFIGURATION
    }
    broker = _broker_file(own, variables, environ, problems)
    settings = Settings()
    settings.warnings += own.repeated_keys(table)
    broker_prefixes = PluginPrefixes("", "")
    if broker is not None:
        broker_prefixes = _prefixes(problems, broker, {}, PluginPrefixes("", ""))
        _take_broker(broker, table, broker_prefixes, settings)
    settings.prefixes = _prefixes(problems, own, variables, broker_prefixes)
    _take_own(own, table, settings, problems)
    _take_environment(variables, table, settings)
    return settings


class _File:
    """One properties file with its providers; a value is resolved once, when it is first asked for."""

    def __init__(
        self,
        label: str,
        path: Path,
        properties: Mapping[str, Property],
        environ: Mapping[str, str],
        problems: list[str],
    ) -> None:
        self.label = label
        self.properties = properties
        self.folder = path.absolute().parent
        self._resolver: Resolver = resolver({name: p.text for name, p in properties.items()}, environ, self.folder)
        self._problems = problems
        self._resolved: dict[str, Setting] = {}

    def setting(self, name: str) -> Setting | None:
        if name not in self.properties:
            return None
        if name not in self._resolved:
            self._resolved[name] = self._resolve(name)
        return self._resolved[name]

    def _resolve(self, name: str) -> Setting:
        given = self.properties[name]
        origin = f"{self.label}:{given.lines[-1]}"
        text: str | None = None
        try:
            text = self._resolver.resolve(given.text)
        except UnresolvedVariableError as error:
            self._problems.append(f"{origin}: {name}: {error}")
        return Setting(text, given.text, origin, self.folder)

    def repeated_keys(self, table: KeyTable) -> list[str]:
        return [
            f"{self.label}: {name} is given in lines {', '.join(map(str, given.lines))}; the last one counts"
            for name, given in self.properties.items()
            if len(given.lines) > 1 and not table.is_anothers(name)
        ]


def _broker_file(
    own: _File, variables: Mapping[str, Setting], environ: Mapping[str, str], problems: list[str]
) -> _File | None:
    name = keys.BROKER_CONFIG.name
    setting = variables.get(environment.variable_name(name)) or own.setting(name)
    if setting is None or not setting.text:
        return None
    path = setting.folder / setting.text.strip()
    try:
        return _File(f"broker.config {path.name}", path, read_properties(path), environ, problems)
    except PropertiesError as error:
        problems.append(f"{setting.origin}: {name}: {error}")
        return None


def _prefixes(
    problems: list[str], file: _File, variables: Mapping[str, Setting], inherited: PluginPrefixes
) -> PluginPrefixes:
    def prefix(key: Key[str], otherwise: str) -> str:
        setting = variables.get(environment.variable_name(key.name)) or file.setting(key.name)
        if setting is None or setting.text is None:
            return otherwise or key.default or ""
        if not setting.text.strip():
            problems.append(f"{setting.origin}: {key.name} must not be empty: every key would be the plug-in's")
            return key.default or ""
        return setting.text.strip()

    return PluginPrefixes(
        prefix(tier.STORAGE_MANAGER_PREFIX, inherited.storage), prefix(tier.METADATA_MANAGER_PREFIX, inherited.metadata)
    )


def _take_broker(broker: _File, table: KeyTable, prefixes: PluginPrefixes, settings: Settings) -> None:
    for key in TABLE_KEYS_TAKEN:
        setting = broker.setting(key.name)
        if setting is not None:
            settings.table[key.name] = setting
    _take_plugin_keys(broker, table, prefixes, settings)


def _take_plugin_keys(file: _File, table: KeyTable, prefixes: PluginPrefixes, settings: Settings) -> None:
    # Bare client keys first, so that the prefixed ones of the same file overwrite them.
    for name in sorted(file.properties, key=prefixes.is_bare, reverse=True):
        owner = prefixes.owner(name)
        setting = file.setting(name) if owner is not None and name not in table.by_name else None
        if owner is not None and setting is not None:
            settings.plugin(owner[0])[owner[1]] = setting


def _take_own(own: _File, table: KeyTable, settings: Settings, problems: list[str]) -> None:
    taken: dict[str, str] = {}
    for name in own.properties:
        owner = settings.prefixes.owner(name)
        if owner is None and table.is_anothers(name):
            continue
        setting = own.setting(name)
        key = table.by_name.get(name)
        if key is not None and setting is not None:
            if key.name in taken and settings.table[key.name].text != setting.text:
                problems.append(f"{setting.origin}: {name} contradicts {taken[key.name]}: keep one of them")
            taken[key.name] = name
            settings.table[key.name] = setting
        elif setting is not None and owner is None and not is_provider_key(name):
            problems.append(f"{setting.origin}: {_unknown_key(name, table, settings.prefixes)}")
    _take_plugin_keys(own, table, settings.prefixes, settings)


def _take_environment(variables: Mapping[str, Setting], table: KeyTable, settings: Settings) -> None:
    plugin_keys = [settings.prefixes.spelled(plugin, name) for plugin in Plugin for name in settings.plugin(plugin)]
    known = {environment.variable_name(name): name for name in (*table.by_name, *plugin_keys)}
    for variable, setting in variables.items():
        name = known.get(variable) or environment.key_name(variable)
        key, owner = table.by_name.get(name), settings.prefixes.owner(name)
        if key is not None:
            settings.table[key.name] = setting
        elif owner is not None:
            settings.plugin(owner[0])[owner[1]] = setting
        elif not table.is_anothers(name):
            settings.warnings.append(environment.unknown_variable(variable, table.by_name))


def _unknown_key(name: str, table: KeyTable, prefixes: PluginPrefixes) -> str:
    nearest = table.nearest(name, (prefixes.storage, prefixes.metadata))
    hint = "" if nearest is None else f"; the nearest is {nearest}"
    return f"unknown key {name}{hint} (a broker's own keys belong in the file that broker.config names)"
