"""The tier's configuration: `load_tier_config(path, environ)` gives a checked `TierClientConfig` or raises ConfigError.

keys, tier_keys   keys that all readers of the tier share   sources   FILE, environment, broker.config: which counts
kinds, sizes      how values are written                    values    typed, with problems noted
model             the typed result's parts                  build     makes them

`proxy.config` adds what is the proxy's own to the same file.
"""

from storage.config.errors import ConfigError
from storage.config.tier_client import TierClientConfig, load_tier_config

__all__ = ["ConfigError", "TierClientConfig", "load_tier_config"]
