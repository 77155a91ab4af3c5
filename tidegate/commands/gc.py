"""`tidegate gc FILE`: delete what nothing in the metadata topic refers to (docs/tools.md#gc).

Two runs: the first one prints the plan, and writes it with `--plan`; the second one, with `--yes`, deletes what is in
the plan and still an orphan. What makes an orphan, and when none may be deleted, is `storage.checks.orphans`.

What a run does, in this order: read every record of the metadata topic; list the store; read the records that have
come meanwhile, and judge again. A deletion also reads them before each batch, and looks at each object once more. How
old an object is, the store's own clock says.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, TextIO

import trio

from proxy.upstream.cluster import Cluster
from storage.checks.orphans import Plan, PlanError, PlanOrigin, SeenSegments, Standing, Survey
from storage.config.client_settings import client_settings
from storage.config.model import Mode
from storage.config.registry import folder_of, open_remote_storage_manager
from storage.errors import RemoteStorageError, RetriableRemoteStorageError, TierError
from storage.formats.tier_folder import StaleUpload, TierFolder
from storage.limited_files import UnreadableFileError, read_limited
from storage.metadata.snapshot import SnapshotFile
from storage.metadata.snapshot_stream import SnapshotError
from storage.model import uuid_to_text
from storage.remote_storage_manager import RemoteStorageManager, StoredObject
from storage.sizes import shown_size
from storage.wall_clock import wall_clock_ms
from tidegate import exit_codes
from tidegate.commands.metadata_records import WholeTopic, whole_topic
from tidegate.commands.output import Progress, iso_time, print_json, print_table, printable
from tidegate.commands.report import Report
from tidegate.commands.tier import open_metadata_topic, run_command
from tidegate.config.model import Config

PLAN_BYTES_MAX: Final = 1024**3

BATCH_OBJECTS: Final = 500
"""Deleted between two looks at the metadata topic."""

LOOKS_MAX: Final = 16
"""HEADs at once."""

NAMED_MAX: Final = 20
"""Orphans that a person is shown; the plan has them all."""

STOP_INTERVAL: Final = 256
"""Listed objects between two looks at whether the command is to end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GcOptions:
    """`plan`: where the plan is written, or read with `deletes`. `i_own_this_tier`: as it was said."""

    older_than_ms: int
    orphan_percent_max: float
    plan: Path | None
    deletes: bool
    i_own_this_tier: bool


@dataclass(slots=True)
class GcResult:
    """What a run found and did. With `refusals` nothing was deleted, and no plan was written."""

    origin: PlanOrigin
    survey: Survey
    plan: Plan
    refusals: list[str]
    deletes: bool
    deleted: list[StoredObject] = field(default_factory=list)
    aborted: list[StaleUpload] = field(default_factory=list)
    changed: int = 0
    """In the plan: no orphans any more, gone, or replaced since."""
    failures: dict[str, str] = field(default_factory=dict)

    @property
    def exit_code(self) -> int:
        return exit_codes.FOUND_WRONG if self.refusals or self.failures else exit_codes.DONE

    def document(self) -> dict[str, Any]:
        """For `--json`."""
        survey = self.survey
        return {
            "cluster_id": self.origin.cluster_id,
            "metadata_topic_id": self.origin.metadata_topic_id,
            "metadata_records": survey.seen.records,
            "objects": {
                each.name.lower(): {"count": survey.objects[each], "bytes": survey.size_bytes[each]}
                for each in Standing
            },
            "uploads": {each.name.lower(): survey.uploads[each] for each in Standing},
            "uploads_unseen": survey.uploads_unseen,
            "orphan_percent": round(survey.orphan_percent, 3),
            "orphans": [
                {"name": name, "size_bytes": size_bytes, "modified_ms": modified_ms}
                for name, size_bytes, modified_ms in self.plan.objects
            ],
            "stale_uploads": [{"name": name, "started_ms": started_ms} for name, _, started_ms in self.plan.uploads],
            "orphans_left_out": survey.left_out,
            "refusals": self.refusals,
            "deleted_objects": len(self.deleted),
            "deleted_bytes": sum(each.size_bytes for each in self.deleted),
            "aborted_uploads": len(self.aborted),
            "changed_since_plan": self.changed,
            "failures": self.failures,
        }


def run(config: Config, options: GcOptions, out: TextIO, *, is_json: bool = False) -> int:
    """Print what was found and done; the exit code."""
    problem = usage_problem(config, options)
    if problem is not None:
        print(f"tidegate: {problem}", file=sys.stderr)
        return exit_codes.USAGE
    try:
        given = read_plan(options.plan) if options.deletes and options.plan is not None else None
    except PlanError as error:
        print(f"tidegate: {error}; make it again with --plan", file=sys.stderr)
        return exit_codes.USAGE

    async def work() -> int:
        result = await collect(config, options, given)
        if options.plan is not None and not options.deletes and not result.refusals:
            write_plan(options.plan, result.plan)
        if is_json:
            print_json(out, result.document())
        else:
            _show(result, options, out)
        return result.exit_code

    return run_command(work)


def _show(result: GcResult, options: GcOptions, out: TextIO) -> None:
    survey, report = result.survey, Report(out)
    rows = [
        (each.value, survey.objects[each], shown_size(survey.size_bytes[each]), survey.uploads[each])
        for each in Standing
        if survey.objects[each] or survey.uploads[each] or each is Standing.ORPHAN
    ]
    print_table(out, ("objects and unfinished uploads", "objects", "size", "uploads"), rows)
    named = [
        (name, shown_size(size_bytes), iso_time(changed_ms)) for name, size_bytes, changed_ms in result.plan.objects
    ]
    named += [(f"{name} (upload)", "", iso_time(started_ms)) for name, _, started_ms in result.plan.uploads]
    out.write("\n")
    # Not as a table, which would cut long names into lines.
    out.writelines(
        f"orphan  {size_text:>9}  {changed_at}  {printable(name)}\n"
        for name, size_text, changed_at in named[:NAMED_MAX]
    )
    if len(named) > NAMED_MAX:
        report.ok(f"and {len(named) - NAMED_MAX} more: --plan PLAN.json, or --json, has all")
    if survey.objects[Standing.FOREIGN]:
        report.warning(f"{survey.objects[Standing.FOREIGN]} objects are left alone: another cluster may have them")
    if survey.uploads_unseen is not None:
        report.warning(f"unfinished uploads could not be listed, and are left alone: {survey.uploads_unseen}")
    if survey.left_out:
        report.warning(f"{survey.left_out} orphans more are not in this plan: run it again afterwards")
    for refusal in result.refusals:
        report.wrong(f"nothing is deleted: {refusal}")
    if not result.refusals:
        _show_done(result, options.plan, report)


def _show_done(result: GcResult, plan: Path | None, report: Report) -> None:
    for name, reason in list(result.failures.items())[:NAMED_MAX]:
        report.wrong(f"{printable(name)}: {reason}")
    if result.failures:
        report.wrong(f"{len(result.failures)} could not be deleted: mend that, and run it again with the same plan")
    if result.deletes:
        freed = shown_size(sum(each.size_bytes for each in result.deleted))
        report.ok(f"{len(result.deleted)} objects deleted ({freed}), {len(result.aborted)} uploads given up")
        if result.changed:
            report.ok(f"{result.changed} of the plan left alone: no orphans any more, replaced, or gone")
    elif plan is None:
        report.ok("nothing is deleted: this is the plan. --plan PLAN.json writes it, and --yes deletes by it")
    else:
        report.ok(f"nothing is deleted: {plan} is the plan. Read it; with --yes it is carried out")


def write_plan(path: Path, plan: Plan) -> None:
    """Whole or not at all.

    Raises:
        OSError: it cannot be written; the error names the file.
    """
    draft = path.with_name(f"{path.name}.draft")
    draft.write_text(plan.text())
    draft.replace(path)


async def collect(
    config: Config, options: GcOptions, given: Plan | None, *, now_ms: Callable[[], int] = wall_clock_ms
) -> GcResult:
    """Find orphans; with `options.deletes` delete those of the given plan.

    Raises:
        TierError, UpstreamError, RemoteStorageError: the metadata topic cannot be read whole, or the store not listed;
            nothing was deleted then.
    """
    manager = open_remote_storage_manager(
        config.remote_storage_manager_class_name, config.remote_storage_config, prefix=config.remote_storage_prefix
    )
    try:
        await trio.to_thread.run_sync(manager.ask)
        made_at_ms = now_ms() + (manager.clock_offset_ms() or 0)
        async with trio.open_nursery() as nursery:
            upstream = Cluster(client_settings(config.upstream), nursery)
            await upstream.refresh()
            async with open_metadata_topic(config, upstream, nursery) as topic:
                seen = SeenSegments(config.catalog.segments_max)
                async with whole_topic(topic, nursery, seen.take) as records:
                    origin = PlanOrigin.of(topic.cluster.cluster_id, topic.description.topic_id, manager.identity)
                    survey = Survey(seen, made_at_ms - options.older_than_ms)
                    with Progress("reading metadata", "records") as progress:
                        await records.catch_up(progress.told)
                    folder = folder_of(manager)
                    await trio.to_thread.run_sync(_list, manager, folder, survey)
                    await records.catch_up()
                    survey.settle()
                    plan = Plan.of(origin, made_at_ms, survey)
                    refusals = survey.refusals(options.orphan_percent_max) + _foreign_snapshot(config, origin)
                    refusals += [] if given is None else given.origin.differences(origin)
                    result = GcResult(origin, survey, plan, refusals, options.deletes)
                    if given is not None and not refusals:
                        await _delete(given, records, folder, result)
            nursery.cancel_scope.cancel()
        return result
    finally:
        manager.close()


def usage_problem(config: Config, options: GcOptions) -> str | None:
    """Why this command line cannot be done, in a sentence."""
    if options.deletes and options.plan is None:
        return "--yes deletes what is in a plan: make one with --plan PLAN.json, read it, and name it again with --yes"
    if options.deletes and config.mode is Mode.REPLICA and not options.i_own_this_tier:
        return (
            "mode=replica: the brokers write this tier, and they delete from it. If no other program is to be trusted"
            " with that more than this one, say --i-own-this-tier"
        )
    return None


def read_plan(path: Path) -> Plan:
    """The plan in a file.

    Raises:
        PlanError: it cannot be read, or is none.
    """
    try:
        return Plan.parse(read_limited(path, PLAN_BYTES_MAX).decode())
    except (UnreadableFileError, PlanError, UnicodeDecodeError) as error:
        raise PlanError(f"{path} {error}") from error


def _list(manager: RemoteStorageManager, folder: TierFolder, survey: Survey) -> None:
    with Progress("listing the store", "objects") as progress:
        for number, found in enumerate(manager.list_objects()):
            survey.object(found)
            if number % STOP_INTERVAL == 0:
                trio.from_thread.check_cancelled()
                progress.told(number, number)
    try:
        for upload in folder.uploads():
            survey.upload(upload)
    except RetriableRemoteStorageError:
        raise
    except RemoteStorageError as error:
        survey.uploads_unseen = str(error)


def _foreign_snapshot(config: Config, origin: PlanOrigin) -> list[str]:
    """Return what in the notes of `serve` with this very file is not of this cluster."""
    folder = config.catalog.snapshot_path
    if folder is None:
        return []
    file = SnapshotFile(folder)
    try:
        then = file.origin()
    except (SnapshotError, OSError):
        return []  # `serve` sets it aside; it says nothing of this cluster
    if then is None:
        return []
    found = []
    if then.cluster_id != origin.cluster_id:
        found.append(f"{file.path} is of cluster {then.cluster_id}, and these brokers are of {origin.cluster_id}")
    elif uuid_to_text(then.topic_id) != origin.metadata_topic_id:
        ids = f"{uuid_to_text(then.topic_id)}, and now its id is {origin.metadata_topic_id}"
        found.append(f"{file.path} is of metadata topic {ids}: it was created again, and has lost what it knew")
    return [f"{each}. Start serve with this file once: it looks at it again" for each in found]


async def _delete(given: Plan, records: WholeTopic, folder: TierFolder, result: GcResult) -> None:
    """Delete batch by batch, until the end or the first trouble with the metadata topic."""
    objects, uploads = given.narrow(result.survey)
    result.changed = len(given.objects) + len(given.uploads) - len(objects) - len(uploads)
    survey = result.survey
    try:
        with Progress("deleting", "objects") as progress:
            for at in range(0, len(objects), BATCH_OBJECTS):
                progress.told(at, len(objects))
                batch = objects[at : at + BATCH_OBJECTS]
                await records.catch_up()
                orphans = [each for each in batch if survey.object_standing(each) is Standing.ORPHAN]
                result.changed += len(batch) - len(orphans)
                await trio.to_thread.run_sync(_delete_batch, folder, orphans, result)
        await records.catch_up()
        for upload in uploads:
            if survey.upload_standing(upload) is not Standing.ORPHAN:
                result.changed += 1
                continue
            try:
                await trio.to_thread.run_sync(folder.abort, upload)
                result.aborted.append(upload)
            except RemoteStorageError as error:
                result.failures[upload.name] = str(error)
    except (TierError, RemoteStorageError) as error:
        result.failures["the metadata topic"] = f"{error}; what is left of the plan stays"


def _is_same(listed: StoredObject, now: StoredObject | None) -> bool:
    """A store's headers tell whole seconds where its listings may tell milliseconds."""
    return now is not None and now.size_bytes == listed.size_bytes and abs(now.modified_ms - listed.modified_ms) < 1000


def _delete_batch(folder: TierFolder, orphans: Sequence[StoredObject], result: GcResult) -> None:
    """Each is looked at once more: one that was written again since is another object."""

    def look(orphan: StoredObject) -> StoredObject | None:
        try:
            return folder.look(orphan.name)
        except RemoteStorageError as error:
            result.failures[orphan.name] = str(error)
            return None

    with ThreadPoolExecutor(LOOKS_MAX) as pool:
        now: Iterable[StoredObject | None] = list(pool.map(look, orphans))
    same = [orphan for orphan, found in zip(orphans, now, strict=True) if _is_same(orphan, found)]
    result.changed += len(orphans) - len(same) - sum(each.name in result.failures for each in orphans)
    try:
        if same:
            folder.delete([each.name for each in same])
        undeleted: set[str] = set()
    except RemoteStorageError as error:
        undeleted = set(error.undeleted) or {each.name for each in same}
        result.failures.update(error.undeleted or {each.name: str(error) for each in same})
    result.deleted += [each for each in same if each.name not in undeleted]
