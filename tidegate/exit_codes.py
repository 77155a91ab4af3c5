"""What the process tells its caller (docs/protocol.md#exit-codes)."""

from typing import Final

DONE: Final = 0
"""The work was done and nothing was found wrong."""

FOUND_WRONG: Final = 1
"""The command ran and found something wrong, or was interrupted."""

USAGE: Final = 2
"""The command line or the configuration is wrong; nothing was started."""
