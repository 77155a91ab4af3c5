"""The configuration: `load(path, environ)` gives a checked `Config`, or raises `ConfigError` with every problem.

keys    the table of serve's keys              build   the groups, and the checks across keys
model   the typed result                       later   what is refused in this version

What other readers of the tier need of the same file too is in `storage.config`.
"""

from proxy.config.load import load
from proxy.config.model import Config

__all__ = ["Config", "load"]
