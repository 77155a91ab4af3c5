"""What a running Tidegate says of its workers, and its processes as the kernel has them."""

import json
from pathlib import Path
from typing import Any

from tests.support.serving import Serving
from tests.support.waiting import wait_until


def report_of(served: Serving) -> dict[str, Any]:
    """The body of `/readyz`."""
    report: dict[str, Any] = json.loads(served.page("/readyz")[1])
    return report


def workers_of(served: Serving) -> list[dict[str, Any]]:
    workers: list[dict[str, Any]] = report_of(served)["workers"]
    return workers


def connections_of(served: Serving) -> list[int]:
    """Return how many connections each worker has."""
    return [each["connections"] for each in workers_of(served)]


def all_are_ready(served: Serving) -> bool:
    """Return whether each worker is. Meanwhile the host must be, as the others are."""
    status, body = served.page("/readyz")
    assert status == 200, body
    return all(each["ready"] for each in json.loads(body)["workers"])


def family_of(served: Serving) -> list[int]:
    """The process ids of the templates and the workers: all are the supervisor's children."""
    pid = served.process.pid
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def templates_of(served: Serving) -> list[int]:
    """The process ids of the two templates, once there are two."""
    workers = {each["pid"] for each in workers_of(served)}

    def found() -> list[int]:
        pids = [pid for pid in family_of(served) if pid not in workers]
        return pids if len(pids) == 2 else []

    return wait_until(found, "two templates")


def have_ended(pids: list[int]) -> bool:
    """Return whether none of them runs any more; one that nobody has waited for yet has ended, too."""

    def runs(pid: int) -> bool:
        try:
            return "\nState:\tZ" not in Path(f"/proc/{pid}/status").read_text()
        except (FileNotFoundError, ProcessLookupError):
            return False

    return not any(map(runs, pids))
