"""The tier's configuration: `load_tier_config(path, environ)` gives a checked `TierClientConfig` or raises ConfigError.

keys, kinds       what a key is, and how values are written        properties_file   one file, its variables looked up
model             the parts of the result that are no keys         sources           which value counts; values, typed
tier_client       the keys that readers of the tier share          security          who we are to the brokers
ssl_contexts      certificates and keys, and OpenSSL's contexts out of them

`proxy.config` adds what is the proxy's own to the same file.
"""

from storage.config.sources import ConfigError
from storage.config.tier_client import TierClientConfig, load_tier_config

__all__ = ["ConfigError", "TierClientConfig", "load_tier_config"]
