"""The configuration: `load(path, environ)` gives a checked `Config`, or raises `ConfigError` with every problem.

model       every key of serve and the typed result     load    what is derived, and the checks across keys

What other readers of the tier need of the same file too is in `storage.config`.
"""

from tidegate.config.load import load
from tidegate.config.model import Config

__all__ = ["Config", "load"]
