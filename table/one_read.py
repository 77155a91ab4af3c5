"""One read: planned where the brokers can be asked, and read anywhere. Spark's source and `tidegate.scan` go this way.

with kept_tier.open(config) as tier:
    planned = plan_read(tier, request, bounds)
reader = task_reader(config, bounds.within(request))
for task in planned.tasks:
    yield from reader.read(task)
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from storage.config.tier_client import TierClientConfig
from table.driver import DumpedTier, Tier, log_start_asker, shipped_storage, shipped_tail
from table.planning.bounds import Bounds
from table.planning.offset_bounds import wanted_offsets
from table.planning.partition_view import PartitionView, WantedOffsets
from table.planning.planner import plan, planned_costs
from table.planning.request import ReadRequest
from table.planning.time_bounds import ended_by_time
from table.reading.read_task import TaskReader
from table.schema import VALUE_COLUMNS
from table.tasks import Task

if TYPE_CHECKING:
    from table.values.settled import SettledColumn


@dataclass(frozen=True, slots=True)
class PlannedRead:
    """`views`: of all partitions that were selected, before any bounds."""

    views: tuple[PartitionView, ...]
    tasks: tuple[Task, ...]

    def costs(self) -> dict[str, Any]:
        """As planned_costs."""
        return planned_costs(self.views, self.tasks)


def plan_read(tier: Tier | DumpedTier, request: ReadRequest, bounds: Bounds) -> PlannedRead:
    """The tasks of a read of what there is now.

    Raises: whatever of TierViewError, OffsetBoundsError, PlanningError, UpstreamError and RemoteStorageError is the
        case; each is one sentence or a few.
    """
    views = tier.view.partitions(request.selection, request.read_committed)
    wanted = bounds.narrowed(wanted_offsets(views, request, tier.client))
    bounded = bounds.within(request)
    wanted = ended_by_time(
        wanted,
        tier.transactions.manager,
        timestamp_max_ms=bounded.timestamp_max_ms,
        disorder_ms=bounded.timestamp_disorder_ms,
    )
    return plan_wanted(tier, views, wanted, bounded)


def plan_wanted(
    tier: Tier | DumpedTier, views: Sequence[PartitionView], wanted: Sequence[WantedOffsets], request: ReadRequest
) -> PlannedRead:
    """The tasks for these offsets. Raises PlanningError and RemoteStorageError."""
    if request.read_committed:
        wanted = tier.transactions.with_aborted(wanted)
    tasks = plan(wanted, bytes_per_partition=request.bytes_per_partition, timestamp_min_ms=request.timestamp_min_ms)
    return PlannedRead(tuple(views), tasks)


def task_reader(
    config: TierClientConfig,
    request: ReadRequest,
    settled: "Sequence[SettledColumn]" = (),
    tail_bootstrap_servers: str | None = None,
) -> TaskReader:
    """Return the reader of a request's tasks. It travels with credentials.

    Raises:
        StorageConfigError: a file that the storage manager's configuration names cannot be read.
        OptionsError: the servers of the tail are no such list.
    """
    tail = shipped_tail(config, tail_bootstrap_servers) if request.reads_tail else None
    values = None
    if settled or any(name in VALUE_COLUMNS for name in request.columns):
        from table.values.settled import values_plan

        values = values_plan(request, settled, config.schema_registry)
    storage = shipped_storage(config)
    return TaskReader(storage, request.read_options, tail, values, log_start_asker(config, storage))
