"""Whatever brokers, store or files do wrong to a command: one line on standard error that says what to do, and an exit
code."""

import os
import sys

from protocol.client.errors import UpstreamError
from storage.errors import RemoteStorageError, StorageConfigError
from tidegate import exit_codes


def say_failure(cause: BaseException) -> int:
    """Tell of one cause; its exit code."""
    if isinstance(cause, BrokenPipeError):
        # The reader of the output has enough (`| head`): nothing is wrong, and nothing more is to be written.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return exit_codes.DONE
    is_wrong_key = isinstance(cause, StorageConfigError)
    is_far = isinstance(cause, UpstreamError | RemoteStorageError) and not is_wrong_key
    hint = "; `tidegate check FILE` tries each step by itself" if is_far else ""
    if isinstance(cause, OSError) and cause.filename is not None:
        hint = "; see to that file, or name another"
    print(f"tidegate: {cause}{hint}", file=sys.stderr)
    return exit_codes.USAGE if is_wrong_key else exit_codes.FOUND_WRONG
