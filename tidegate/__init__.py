"""The program: command line, configuration, serve, and the process around the connections.

    cli       the commands, each a file of `commands`
    serve     puts the parts together; `workers` does so in several processes
    life_cycle, reload, admin, logs, status   what is around it

Read `serve` first.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from table.history.scan import scan as scan


def __getattr__(name: str) -> Any:
    """`scan`, loaded when it is asked for: serve and most commands have no use for what it needs."""
    if name == "scan":
        from table.history.scan import scan

        return scan
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
