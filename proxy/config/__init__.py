"""The configuration: `load(path, environ)` gives a checked `Config` or raises `ConfigError` with every problem.

keys, tier_keys   the one table of keys        sources   FILE, environment, broker.config and their precedence
kinds, sizes      how values are written       values    typed, with problems noted
model             the typed result             build     the groups, and the checks across keys
"""

from proxy.config.errors import ConfigError
from proxy.config.load import load
from proxy.config.model import Config

__all__ = ["Config", "ConfigError", "load"]
