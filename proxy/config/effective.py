"""Each key as it took effect, for `tidegate check` and the log: value, origin, and no secret."""

from collections.abc import Mapping
from typing import Any, Final

from proxy.config.keys import SERVE_KEYS
from proxy.config.model import EffectiveKey
from storage.config.kinds import Key
from storage.config.masking import masked
from storage.config.sources import Setting

UNSET: Final = "(unset)"
"""Shown for a key without value and default."""


def effective_keys(
    table: Mapping[str, Setting], plugins: Mapping[str, Setting], derived: Mapping[str, str]
) -> tuple[EffectiveKey, ...]:
    """The table's keys in its order, then the plug-ins' (by whole name), each with its origin.

    Args:
        table: what was given, by key.
        plugins: what was given to the plug-ins, by whole key.
        derived: values of keys whose default depends on others, by key.
    """
    shown: list[EffectiveKey] = []
    for key in SERVE_KEYS.all_keys():
        setting = table.get(key.name)
        if setting is not None:
            shown.append(_given(key.name, setting, key))
        elif key.name in derived:
            value = derived[key.name]
            shown.append(EffectiveKey(name=key.name, value=value, origin="derived", text=value))
        else:
            value = key.default or UNSET
            shown.append(EffectiveKey(name=key.name, value=value, origin="default", text=value))
    shown += [_given(name, setting, None) for name, setting in sorted(plugins.items())]
    return tuple(shown)


def _given(name: str, setting: Setting, key: Key[Any] | None) -> EffectiveKey:
    text = setting.raw if setting.text is None else setting.text
    return EffectiveKey(name=name, value=masked(name, setting, key), origin=setting.origin, text=text)
