"""Failures of `scan` and `sql`: one line each, and an exit code. Imported by who has pyarrow."""

import sys
from collections.abc import Callable, Iterable

from protocol.client.errors import UpstreamError
from storage.config import ConfigError
from storage.errors import RemoteStorageError, TierError
from table.decoding.inflation import RecordTooLargeError
from table.planning.offset_bounds import OffsetBoundsError
from table.planning.planner import PlanningError
from table.planning.request import OptionsError
from table.planning.tier_view import TierViewError
from table.values.conversion import SchemaError
from tidegate import exit_codes
from tidegate.commands.failures import say_failure
from tidegate.logs import configure_logs


def run_table_command(work: Callable[[], None]) -> int:
    """Run it; its exit code. An error that is none of ours is raised."""
    configure_logs("error")  # the last line of the command says what was left out
    try:
        work()
        sys.stdout.flush()
    except (ConfigError, OptionsError) as error:
        return say_problems(error.problems)
    except SchemaError as error:
        return say_problems([str(error)])
    except (OffsetBoundsError, PlanningError, RecordTooLargeError, TierViewError) as error:
        return say_problems([str(error)], exit_codes.FOUND_WRONG)
    except (UpstreamError, RemoteStorageError, TierError, OSError) as error:
        return say_failure(error)
    return exit_codes.DONE


def say_problems(problems: Iterable[str], code: int = exit_codes.USAGE) -> int:
    """Say each in a line; the exit code."""
    for problem in problems:
        print(f"tidegate: {problem}", file=sys.stderr)
    return code
