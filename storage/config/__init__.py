"""The tier's configuration: `load_tier_config(path, environ)` gives a checked `TierClientConfig` or raises ConfigError.

keys              what a key is, and how values are written        sources           files, variables; which one counts
model             the parts of the result that are no keys         security          who we are to the brokers
tier_client       the keys that readers of the tier share          ssl_contexts      certificates, keys, contexts

`proxy.config` adds what is the proxy's own to the same file.
"""

from storage.config.sources import ConfigError
from storage.config.tier_client import TierClientConfig, load_tier_config

__all__ = ["ConfigError", "TierClientConfig", "load_tier_config"]
