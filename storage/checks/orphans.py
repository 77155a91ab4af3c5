"""Which objects of a tier nothing refers to, and what has to be left alone and why (docs/tools.md#gc). No I/O.

An object is an orphan if all of these hold; each guards against another mistake:

1. Its key is one that the format would have written. Whatever else lies in the bucket is somebody's.
2. The metadata topic has a record of its topic's id. Ids are random: what another cluster wrote to the same place is
   of topics that this one never had, so the wrong cluster finds nothing to delete.
3. No record names its segment's id, or the last one says DELETE_SEGMENT_FINISHED. Not the catalog is asked but every
   record: a catalog forgets with a partition, or drops as illegal, what a broker may still hold on to. An upload is
   announced (COPY_SEGMENT_STARTED) before its first byte, so one that is under way is named too.
4. It is older than `older_than_ms` by the store's clock, which wrote its time, for a record that is late.

What the answer as a whole must show is in `refusals`: a listing that looks wrong deletes nothing at all.
"""

import enum
import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Final, TypeVar

from storage.errors import MetadataRecordError
from storage.formats.tier_folder import StaleUpload
from storage.metadata.reading import MetadataEvent
from storage.metadata.serde import decode, decode_key
from storage.model import (
    RemoteLogSegmentId,
    RemoteLogSegmentMetadata,
    RemoteLogSegmentMetadataUpdate,
    RemoteLogSegmentState,
    TopicIdPartition,
    uuid_to_text,
)
from storage.remote_storage_manager import StoredObject

T = TypeVar("T")

PLAN_FORMAT: Final = 1

PLANNED_MAX: Final = 500_000
"""Objects in one plan, some 300 bytes each in memory; what is beyond is left to the next one."""

OBJECTS_OF_ONE_COPY_MAX: Final = 6
"""What an interrupted copy leaves of a partition is no sign that its records were lost."""

_FINISHED = RemoteLogSegmentState.COPY_SEGMENT_FINISHED
_GONE = RemoteLogSegmentState.DELETE_SEGMENT_FINISHED


class Standing(enum.Enum):
    """What an object is to the metadata topic."""

    ORPHAN = "orphan"
    REFERRED = "of segments that records name"
    YOUNG = "too young"
    FOREIGN = "of topics that no record names"
    STRANGE = "not of this format"


class SeenSegments:
    """What the records of the metadata topic name. `take` must get every record, in the order of its partition."""

    def __init__(self, segments_max: int) -> None:
        self.records = 0
        self.undecodable: list[str] = []
        """Where the first of them is; one that is not understood may be about any segment."""
        self.is_full = False
        self._segments_max = segments_max
        self._states: dict[bytes, RemoteLogSegmentState] = {}
        self._topic_ids: set[bytes] = set()

    def take(self, events: Sequence[MetadataEvent]) -> None:
        """A slice of records."""
        for event in events:
            self.records += 1
            if event.value is not None:
                self._take(event, event.value)
            elif event.key is not None and (named := decode_key(event.key)) is not None:
                self._topic_ids.add(named.topic_id)
                if named.state is _GONE:
                    self._states.pop(named.segment_id, None)

    def standing(self, segment_id: RemoteLogSegmentId | None, changed_ms: int, young_after_ms: int) -> Standing:
        """Return the standing of an object or upload that was last changed at `changed_ms`."""
        if segment_id is None:
            return Standing.STRANGE
        if segment_id.id in self._states:
            return Standing.REFERRED
        if segment_id.topic_id_partition.topic_id not in self._topic_ids:
            return Standing.FOREIGN
        return Standing.ORPHAN if changed_ms < young_after_ms else Standing.YOUNG

    def is_finished(self, segment_id: RemoteLogSegmentId | None) -> bool:
        """Return whether clients may be reading the segment: its objects have to be there."""
        return segment_id is not None and self._states.get(segment_id.id) is _FINISHED

    @property
    def finished_count(self) -> int:
        return sum(state is _FINISHED for state in self._states.values())

    def _take(self, event: MetadataEvent, value: bytes) -> None:
        try:
            record = decode(value)
        except MetadataRecordError as error:
            self.undecodable.append(f"{event.partition}/{event.offset}: {error}")
            del self.undecodable[1:]
            return
        if isinstance(record, RemoteLogSegmentMetadata | RemoteLogSegmentMetadataUpdate):
            self._topic_ids.add(record.segment_id.topic_id_partition.topic_id)
            if record.state is _GONE:
                self._states.pop(record.segment_id.id, None)
            elif record.segment_id.id in self._states or len(self._states) < self._segments_max:
                self._states[record.segment_id.id] = record.state
            else:
                self.is_full = True
        else:
            self._topic_ids.add(record.topic_id_partition.topic_id)


@dataclass(slots=True)
class Survey:
    """A listing of the tier, judged object by object. Ask `settle` once the topic was read to its end again."""

    seen: SeenSegments
    young_after_ms: int
    objects: Counter[Standing] = field(default_factory=Counter)
    size_bytes: Counter[Standing] = field(default_factory=Counter)
    uploads: Counter[Standing] = field(default_factory=Counter)
    finished_found: int = 0
    left_out: int = 0
    orphans: list[StoredObject] = field(default_factory=list)
    stale_uploads: list[StaleUpload] = field(default_factory=list)
    uploads_unseen: str | None = None
    """Why the store's unfinished uploads could not be listed."""
    _own: Counter[TopicIdPartition] = field(default_factory=Counter)
    _orphaned: Counter[TopicIdPartition] = field(default_factory=Counter)

    def object(self, found: StoredObject) -> None:
        """One more object of the listing."""
        self.finished_found += self.seen.is_finished(found.segment_id)
        standing = self.seen.standing(found.segment_id, found.modified_ms, self.young_after_ms)
        self.objects[standing] += 1
        self.size_bytes[standing] += found.size_bytes
        if found.segment_id is not None and standing is not Standing.FOREIGN:
            self._own[found.segment_id.topic_id_partition] += 1
        if standing is Standing.ORPHAN and found.segment_id is not None:
            self._orphaned[found.segment_id.topic_id_partition] += 1
            if len(self.orphans) < PLANNED_MAX:
                self.orphans.append(found)
            else:
                self.left_out += 1

    def upload(self, found: StaleUpload) -> None:
        """One more unfinished upload."""
        standing = self.upload_standing(found)
        self.uploads[standing] += 1
        if standing is Standing.ORPHAN:
            self.stale_uploads.append(found)

    def upload_standing(self, found: StaleUpload) -> Standing:
        """A file that a crash left is of our own naming: nobody refers to it, and only its age counts."""
        if not found.handle:
            return Standing.ORPHAN if found.started_ms < self.young_after_ms else Standing.YOUNG
        return self.seen.standing(found.segment_id, found.started_ms, self.young_after_ms)

    def object_standing(self, found: StoredObject) -> Standing:
        """An object as it stands now."""
        return self.seen.standing(found.segment_id, found.modified_ms, self.young_after_ms)

    def settle(self) -> None:
        """Judge the orphans again, by the records that have come while the listing ran."""
        orphans, self.orphans = self.orphans, []
        for found in orphans:
            standing = self.object_standing(found)
            if standing is Standing.ORPHAN:
                self.orphans.append(found)
                continue
            if found.segment_id is not None:
                self._orphaned[found.segment_id.topic_id_partition] -= 1
            self.objects.update({Standing.ORPHAN: -1, standing: 1})
            self.size_bytes.update({Standing.ORPHAN: -found.size_bytes, standing: found.size_bytes})
        uploads, self.stale_uploads = self.stale_uploads, []
        for upload in uploads:
            standing = self.upload_standing(upload)
            if standing is Standing.ORPHAN:
                self.stale_uploads.append(upload)
            else:
                self.uploads.update({Standing.ORPHAN: -1, standing: 1})

    @property
    def orphan_percent(self) -> float:
        """Orphans among the objects of this cluster's segments."""
        own = sum(self.objects[each] for each in (Standing.ORPHAN, Standing.REFERRED, Standing.YOUNG))
        return 100 * self.objects[Standing.ORPHAN] / own if own else 0.0

    def refusals(self, orphan_percent_max: float) -> list[str]:
        """Why nothing may be deleted on the strength of this listing; a sentence each, with what to do."""
        found = []
        if self.seen.undecodable:
            found.append(
                f"a record of the metadata topic cannot be decoded ({self.seen.undecodable[0]}), and it may be about"
                " any segment: a newer Tidegate may know it"
            )
        if self.seen.is_full:
            found.append("the metadata topic names more segments than catalog.segments.max: raise it")
        if not self.seen.finished_count:
            found.append(
                "the metadata topic names no finished segment, so nothing shows that this is its tier: look at"
                " upstream.bootstrap.servers, and whether the tier is in use"
            )
        elif not self.finished_found:
            found.append(
                f"none of {self.seen.finished_count} finished segments has an object here: this is not the place where"
                " the brokers keep them; look at the bucket (or folder) and key.prefix"
            )
        return [*found, *self._too_many(orphan_percent_max)]

    def _too_many(self, orphan_percent_max: float) -> list[str]:
        """Say where the tier, or a partition in it, has too many: lost records make orphans of what they named."""
        shares = [(self.orphan_percent, "")]
        for partition, count in self._orphaned.items():
            if count > OBJECTS_OF_ONE_COPY_MAX:
                words = f" of {partition.topic}-{partition.partition}"
                shares.append((100 * count / self._own[partition], words))
        over = [each for each in shares if each[0] > orphan_percent_max]
        if not over:
            return []
        most = min(math.floor(max(over)[0]) + 1, 100)
        others = f", and of {len(over) - 1} partitions" if len(over) > 1 else ""
        return [
            f"{over[0][0]:.1f} % of the objects{over[0][1]}{others} are orphans, more than {orphan_percent_max:g} %: if"
            f" you know why, say --max-orphans {most}"
        ]


@dataclass(frozen=True, slots=True)
class PlanOrigin:
    """What a plan is of; it is good for nothing else. `store`: a digest, since a prefix may not be shown."""

    cluster_id: str
    metadata_topic_id: str
    store: str

    @classmethod
    def of(cls, cluster_id: str | None, metadata_topic_id: bytes, identity: str) -> "PlanOrigin":
        """`identity`: RemoteStorageManager.identity."""
        digest = hashlib.sha256(identity.encode()).hexdigest()
        return cls(cluster_id or "", uuid_to_text(metadata_topic_id), digest)

    def differences(self, now: "PlanOrigin") -> list[str]:
        """In what the cluster and the store of today are others; a sentence each."""
        words = {"cluster_id": "cluster", "metadata_topic_id": "metadata topic", "store": "store or prefix"}
        ours, theirs = asdict(now), asdict(self)
        return [
            f"the plan is of another {word}"
            + (f": {theirs[name]}, now {ours[name]}" if name != "store" else "")
            + "; make it again with --plan"
            for name, word in words.items()
            if theirs[name] != ours[name]
        ]


class PlanError(Exception):
    """A file is no plan; the message is the end of a sentence."""


@dataclass(frozen=True, slots=True)
class Plan:
    """What may be deleted: by name, and as it was when it was looked at. A plan only narrows what is deleted: each
    object is judged again by its name, so that nothing is gained by editing one."""

    origin: PlanOrigin
    made_at_ms: int
    objects: tuple[tuple[str, int, int], ...]
    """Name, size in bytes, time of change."""
    uploads: tuple[tuple[str, str, int], ...]
    """Name, handle, time of beginning."""

    @classmethod
    def of(cls, origin: PlanOrigin, made_at_ms: int, survey: Survey) -> "Plan":
        """Return what the survey found."""
        objects = tuple((found.name, found.size_bytes, found.modified_ms) for found in survey.orphans)
        uploads = tuple((found.name, found.handle, found.started_ms) for found in survey.stale_uploads)
        return cls(origin, made_at_ms, objects, uploads)

    def text(self) -> str:
        """One JSON document, an object a line."""
        head = {"format": PLAN_FORMAT, "made_at_ms": self.made_at_ms, **asdict(self.origin)}
        rows = ",\n".join(json.dumps(dict(zip(_OBJECT, row, strict=True))) for row in self.objects)
        uploads = ",\n".join(json.dumps(dict(zip(_UPLOAD, row, strict=True))) for row in self.uploads)
        return f'{json.dumps(head)[:-1]},\n"objects": [\n{rows}\n],\n"uploads": [\n{uploads}\n]}}\n'

    @classmethod
    def parse(cls, text: str) -> "Plan":
        """The inverse of `text`.

        Raises:
            PlanError: it is none.
        """
        try:
            document = json.loads(text)
            if not isinstance(document, dict) or document.get("format") != PLAN_FORMAT:
                raise PlanError(f"is no plan of format {PLAN_FORMAT}")
            origin = PlanOrigin(*(_exactly(document[name.name], str) for name in fields(PlanOrigin)))
            objects = tuple(
                (_exactly(name, str), _exactly(size_bytes, int), _exactly(modified_ms, int))
                for name, size_bytes, modified_ms in _rows(document, "objects", _OBJECT)
            )
            uploads = tuple(
                (_exactly(name, str), _exactly(handle, str), _exactly(started_ms, int))
                for name, handle, started_ms in _rows(document, "uploads", _UPLOAD)
            )
            return cls(origin, _exactly(document["made_at_ms"], int), objects, uploads)
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            raise PlanError(f"is no plan: {error!r}") from error

    def narrow(self, survey: Survey) -> tuple[list[StoredObject], list[StaleUpload]]:
        """Return what is an orphan now, and was one when the plan was made, unchanged since."""
        objects, uploads = set(self.objects), set(self.uploads)
        return (
            [each for each in survey.orphans if (each.name, each.size_bytes, each.modified_ms) in objects],
            [each for each in survey.stale_uploads if (each.name, each.handle, each.started_ms) in uploads],
        )


_OBJECT = ("name", "size_bytes", "modified_ms")
_UPLOAD = ("name", "handle", "started_ms")


def _rows(document: dict[str, Any], member: str, names: Sequence[str]) -> Iterable[list[Any]]:
    return ([row[name] for name in names] for row in document[member])


def _exactly(value: Any, kind: type[T]) -> T:
    if type(value) is not kind:
        raise TypeError(f"{value!r} is no {kind.__name__}")
    return value
