"""`tidegate takeover FILE --from DUMP --log-dir DIR`: prepare a broker that is down to own the tier
(docs/standalone.md#takeover).

A broker that turns remote storage on over a tier of ours deletes it: segments of epochs that its own
`leader-epoch-checkpoint` no longer knows are garbage to it, and so are those below its log start. So both are restored
from the tier, for each partition that is at the broker and in the tier by the same topic id:

- the epochs of what the broker has deleted, from the last segment's checkpoint (`restored_lineage`);
- the log start, where `log-start-offset-checkpoint` names one that is above the tier's. That is also what DeleteRecords
  has committed, which the dump tells.

The brokers that run, if any do, are asked whether they were taken over (tidegate.commands.takeover_plan). Nothing is
written unless all partitions can be restored. The broker cannot start meanwhile, since its lock is held. A second run
finds nothing left to do.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TextIO

import trio

from protocol.client.errors import UpstreamConnectionError, UpstreamError
from proxy.upstream.cluster import Cluster
from proxy.upstream.transport import open_transport
from standalone.takeover import broker_folders
from standalone.takeover.broker_folders import LEADER_EPOCHS, LOG_STARTS
from standalone.takeover.cluster_facts import RunningReplicas, running_replicas
from storage.config.client_settings import client_settings
from storage.config.model import Mode
from storage.config.registry import open_remote_storage_manager
from storage.errors import TierError
from storage.indexes.leader_epochs import LeaderEpochs, encode_leader_epochs
from storage.model import TopicIdPartition
from tidegate import exit_codes
from tidegate.commands.output import print_json, print_table
from tidegate.commands.takeover_dump import TakeoverDump, read_dump
from tidegate.commands.takeover_plan import Given, Plan, Restored, make_plan, place_of
from tidegate.commands.tier import run_command
from tidegate.config.model import Config

CONNECT_S_MAX: Final = 5.0
EPOCHS_SHOWN_MAX: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TakeoverOptions:
    """`dump`: what `tidegate metadata dump` wrote. `topic` None: all."""

    dump: Path
    log_dirs: Sequence[Path]
    topic: str | None = None
    writes: bool = False
    as_json: bool = False


def run(config: Config, options: TakeoverOptions, out: TextIO) -> int:
    """Show the plan, and write it if `writes`; exit_codes.FOUND_WRONG if the broker cannot be prepared."""
    if config.mode is not Mode.STANDALONE:
        print("WRONG   mode=replica: the brokers own this tier already", file=out)
        return exit_codes.USAGE
    return run_command(lambda: _take_over(config, options, out))


async def _take_over(config: Config, options: TakeoverOptions, out: TextIO) -> int:
    with broker_folders.locked(options.log_dirs):
        dump = await trio.to_thread.run_sync(read_dump, options.dump, config.catalog.segments_max)
        cluster_id, node_id = broker_folders.broker_of(options.log_dirs)
        if cluster_id != dump.cluster_id:
            raise TierError(f"these folders are of cluster {cluster_id}, and {options.dump} of {dump.cluster_id}")
        running = await _running(config, dump)
        storage_manager = open_remote_storage_manager(
            config.remote_storage_manager_class_name, config.remote_storage_config, prefix=config.remote_storage_prefix
        )
        try:
            given = Given(dump=dump, storage_manager=storage_manager, node_id=node_id, running=running)
            plan = await trio.to_thread.run_sync(make_plan, given, options.log_dirs, options.topic)
        finally:
            storage_manager.close()
        if not (plan.restored or plan.rebuilt or plan.problems):
            raise TierError(
                f"no partition of broker {node_id} is in the tier by its topic id: nothing is to be done here, if these"
                " are all of its log.dirs; see `tidegate ls FILE`"
            )
        if options.writes and not plan.problems:
            await trio.to_thread.run_sync(_write, plan.restored)
        if options.as_json:
            print_json(out, _document(plan, options, given))
        else:
            _show(plan, out)
            out.writelines(f"{line}\n" for line in _outcome(plan, options, given))
    return exit_codes.FOUND_WRONG if plan.problems else exit_codes.DONE


async def _running(config: Config, dump: TakeoverDump) -> Mapping[TopicIdPartition, RunningReplicas]:
    """The replicas that run. None does where nobody listens at any broker's address."""
    settings = client_settings(config.upstream)
    addresses = dict.fromkeys([*settings.bootstrap_servers, *dump.brokers.values()])
    settings = replace(settings, bootstrap_servers=tuple(addresses))
    async with trio.open_nursery() as nursery:
        cluster = Cluster(settings, nursery)
        try:
            await cluster.refresh()
        except UpstreamConnectionError:
            if await _do_listen(addresses):
                raise
            return {}
        if cluster.cluster_id != dump.cluster_id:
            raise TierError(
                f"the brokers that run are of cluster {cluster.cluster_id}, the dump is of {dump.cluster_id}"
            )
        running = await running_replicas(cluster, dump.facts)
        nursery.cancel_scope.cancel()
    return running


async def _do_listen(addresses: Collection[tuple[str, int]]) -> bool:
    """Return whether somebody accepts connections at one of them."""
    listening: list[tuple[str, int]] = []

    async def look(host: str, port: int) -> None:
        try:
            with trio.fail_after(CONNECT_S_MAX):
                transport = await open_transport(host, port)
        except (UpstreamError, trio.TooSlowError):
            return
        listening.append((host, port))
        transport.abort()

    async with trio.open_nursery() as nursery:
        for host, port in addresses:
            nursery.start_soon(look, host, port)
    return bool(listening)


# --- what is done ---


def _write(restored: Sequence[Restored]) -> None:
    for each in restored:
        if each.epochs != each.epochs_now:
            broker_folders.replace(each.folder.path / LEADER_EPOCHS, encode_leader_epochs(each.epochs))
    for log_dir in dict.fromkeys(each.log_dir for each in restored):
        now = broker_folders.read_log_starts(log_dir)
        then = dict(now)
        for each in restored:
            if each.log_dir == log_dir and each.log_start is not None:
                then[each.folder.partition.topic, each.folder.partition.partition] = each.log_start
        if then != now:
            broker_folders.replace(log_dir / LOG_STARTS, broker_folders.encode_log_starts(then))


def _document(plan: Plan, options: TakeoverOptions, given: Given) -> dict[str, Any]:
    return {
        "broker": given.node_id,
        "other_brokers": sorted(plan.others),
        "partitions": [
            {
                "topic": each.folder.partition.topic,
                "partition": each.folder.partition.partition,
                "folder": str(each.folder.path),
                "leader_epochs_before": each.epochs_now,
                "leader_epochs": each.epochs,
                "log_start_before": each.log_start_now,
                "log_start": each.log_start,
                "warnings": each.warnings,
            }
            for each in plan.restored
        ],
        "rebuilt": [
            {"topic": partition.topic, "partition": partition.partition, "leader": leader}
            for partition, leader in plan.rebuilt.items()
        ],
        "problems": plan.problems,
        "written": options.writes and not plan.problems,
        "metadata_partitions": len(given.dump.ends),
    }


def _show(plan: Plan, out: TextIO) -> None:
    headings = ("partition", "leader epochs at the broker", "and with the tier's", "log start", "and then")
    rows = [
        (
            each.place,
            _shown(each.epochs_now),
            "as they are" if each.epochs == each.epochs_now else _shown(each.epochs),
            "not named" if each.log_start_now is None else str(each.log_start_now),
            "as it is" if each.log_start == each.log_start_now else str(each.log_start),
        )
        for each in plan.restored
    ]
    if rows:
        print_table(out, headings, rows)
    for each in plan.restored:
        for warning in each.warnings:
            print(f"warning {each.place}: {warning}", file=out)
    for partition, leader in plan.rebuilt.items():
        print(f"note    {place_of(partition)}: broker {leader} leads it, and rebuilds the replica here", file=out)
    for problem in plan.problems:
        print(f"WRONG   {problem}", file=out)


def _shown(epochs: LeaderEpochs) -> str:
    """`epoch@offset`, the first and the last."""
    words = [f"{epoch}@{start_offset}" for epoch, start_offset in epochs]
    if len(words) > EPOCHS_SHOWN_MAX:
        words[EPOCHS_SHOWN_MAX - 1 : -1] = [f"… {len(words) - EPOCHS_SHOWN_MAX} more …"]
    return " ".join(words) or "none"


def _outcome(plan: Plan, options: TakeoverOptions, given: Given) -> Iterator[str]:
    if plan.problems:
        yield "nothing was written: a broker must not own a part of the tier only; docs/standalone.md#takeover"
        return
    count = sum(not each.is_done for each in plan.restored)
    if not count:
        yield f"ok      broker {given.node_id}: nothing is left to do; its checkpoints are those of the tier"
    elif not options.writes:
        planned = f"{count} partitions are to be restored; this was a dry run: --yes does it"
        yield f"ok      broker {given.node_id}: {planned}"
    else:
        backups = f"what the files held is beside them, *{broker_folders.BACKUP_SUFFIX}"
        yield f"ok      broker {given.node_id}: {count} partitions restored; {backups}"
    if plan.others:
        yield (
            f"next    brokers {', '.join(map(str, sorted(plan.others)))} hold replicas too: none of them may start "
            "before this command said ok there"
        )
    yield (
        "next    the topics must be marked, by remote.storage.enable=true, before this broker starts, and it needs "
        f"rlmm.config.remote.log.metadata.topic.num.partitions={len(given.dump.ends)} (docs/standalone.md#takeover)"
    )
