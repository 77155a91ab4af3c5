"""`tidegate rewrap FILE`: put old manifests' data keys under the active pair (docs/operate/secure.md#rotating-keys).

A dry run unless `--write` is given. Prints what went wrong, a line each, progress, and the sum at the end.
"""

from collections import Counter
from dataclasses import dataclass
from typing import TextIO

from storage.config.registry import open_remote_storage_manager
from storage.errors import RemoteStorageError, StorageConfigError
from storage.formats.aiven.manager import AivenRemoteStorageManager
from storage.formats.aiven.rewrap import RewrapOutcome
from storage.object_store.retries import Wait, wait_in_thread
from tidegate import exit_codes
from tidegate.config.model import Config
from tidegate.logs import configure_logs

PROGRESS_INTERVAL = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class RewrapOptions:
    """`after`: the last name that a former run told; `per_second`: manifests looked at. With 20 of them a tier of a
    hundred thousand segments is done in an hour and a half, and no store minds."""

    writes: bool
    per_second: float
    after: str


def run(config: Config, options: RewrapOptions, out: TextIO, *, wait: Wait = wait_in_thread) -> int:
    """Rewrap what the configuration's tier holds.

    Returns:
        exit_codes.DONE, FOUND_WRONG when a manifest failed, USAGE when there are no data keys to be wrapped.
    """
    configure_logs("error")
    try:
        manager = open_remote_storage_manager(
            config.remote_storage_manager_class_name, config.remote_storage_config, prefix=config.remote_storage_prefix
        )
    except RemoteStorageError as error:
        print(f"WRONG   {error}", file=out)
        return exit_codes.USAGE
    try:
        if not isinstance(manager, AivenRemoteStorageManager):
            name = config.remote_storage_manager_class_name
            print(f"WRONG   {name} encrypts nothing: only Aiven's plug-in has data keys", file=out)
            return exit_codes.USAGE
        return _run(manager, options, out, wait)
    finally:
        manager.close()


def _run(manager: AivenRemoteStorageManager, options: RewrapOptions, out: TextIO, wait: Wait) -> int:
    counted: Counter[RewrapOutcome] = Counter()
    last = options.after
    try:
        for result in manager.rewrap(writes=options.writes, after=options.after):
            counted[result.outcome] += 1
            last = result.name
            if result.problem is not None:
                print(f"WRONG   {result.name}: {result.problem}", file=out)
            if counted.total() % PROGRESS_INTERVAL == 0:
                print(f"ok      {counted.total()} manifests looked at, the last: {last}", file=out, flush=True)
            wait(1 / options.per_second)
    except KeyboardInterrupt:
        print(f"ok      interrupted; what is done stays. Go on with: --after '{last}'", file=out)
        raise
    except StorageConfigError as error:
        print(f"WRONG   {error}", file=out)
        return exit_codes.USAGE
    except RemoteStorageError as error:
        where = f"; go on with: --after '{last}'" if last else ""
        print(f"WRONG   {error}{where}", file=out)
        return exit_codes.FOUND_WRONG
    verb = "rewrapped" if options.writes else "to be rewrapped"
    others = [each for each in RewrapOutcome if counted[each] and each is not RewrapOutcome.REWRAPPED]
    parts = [f"{counted[RewrapOutcome.REWRAPPED]} {verb}", *(f"{counted[each]} {each.value}" for each in others)]
    print(f"ok      {counted.total()} manifests: {', '.join(parts)}", file=out)
    if not options.writes and counted[RewrapOutcome.REWRAPPED]:
        print("ok      nothing was written: this was a dry run; --write does it", file=out)
    return exit_codes.FOUND_WRONG if counted[RewrapOutcome.FAILED] else exit_codes.DONE
