"""Each key as it took effect, for `tidegate check` and the log: value, origin, and no secret."""

from collections.abc import Mapping

from proxy.config.keys import SERVE_KEYS
from proxy.config.model import EffectiveKey
from storage.config.masking import masked
from storage.config.sources import Setting


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
            shown.append(EffectiveKey(name=key.name, value=masked(key.name, setting, key), origin=setting.origin))
        elif key.name in derived:
            shown.append(EffectiveKey(name=key.name, value=derived[key.name], origin="derived"))
        else:
            shown.append(EffectiveKey(name=key.name, value=key.default or "(unset)", origin="default"))
    for name, setting in sorted(plugins.items()):
        shown.append(EffectiveKey(name=name, value=masked(name, setting, None), origin=setting.origin))
    return tuple(shown)
