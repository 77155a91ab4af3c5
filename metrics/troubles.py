"""The one list of troubles: what may be wrong with a Tidegate, in words that stay (docs/operate/monitor.md#troubles).

`/readyz`, the status page, `/status.json`, `tidegate_trouble{id}`, the log and `tidegate check` all name a trouble by
its id here; a test walks the table.
"""

import enum
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, TypedDict

GUIDE: Final = "docs/operate"


class Severity(enum.StrEnum):
    """How much it matters. An alert tells of each critical one."""

    CRITICAL = "critical"
    """Clients suffer or soon will, or records may be lost."""
    WARNING = "warning"


class TroubleId(enum.StrEnum):
    """All of them, in the order in which they are shown."""

    STARTING = "starting"
    DRAINING = "draining"
    CATALOG_NOT_READ = "catalog_not_read"
    UPSTREAM_UNAVAILABLE = "upstream_unavailable"
    BROKER_SILENT = "broker_silent"
    BROKER_WITHHELD = "broker_withheld"
    TIER_UNAVAILABLE = "tier_unavailable"
    TASK_FAILS = "task_fails"
    NO_NEW_WORKER = "no_new_worker"
    WORKER_DIES = "worker_dies"
    WORKER_DOWN = "worker_down"
    CATALOG_FULL = "catalog_full"
    METADATA_PARTITION_NOT_READ = "metadata_partition_not_read"
    METADATA_TOPIC_UNSAFE = "metadata_topic_unsafe"
    IDENTITY_UNCLEAR = "identity_unclear"
    CERTIFICATE_EXPIRED = "certificate_expired"
    CERTIFICATE_NOT_YET_VALID = "certificate_not_yet_valid"
    CERTIFICATE_NAMES = "certificate_names"
    CERTIFICATE_ISSUER = "certificate_issuer"
    CERTIFICATE_EXPIRES_SOON = "certificate_expires_soon"
    HOST_NOT_FOUND = "host_not_found"
    HOST_ELSEWHERE = "host_elsewhere"
    HANDSHAKES_FAIL = "handshakes_fail"
    NOT_DESCRIBED = "not_described"
    TIER_READS_FAIL = "tier_reads_fail"
    ICEBERG_SEGMENTS = "iceberg_segments"
    TRANSACTION_HANGS = "transaction_hangs"
    LOG_STARTS_UNSURE = "log_starts_unsure"
    CATALOG_BEHIND = "catalog_behind"
    COPYING_IN_TROUBLE = "copying_in_trouble"
    DELETIONS_STOPPED = "deletions_stopped"
    COPY_POISONED = "copy_poisoned"
    COPY_LATE = "copy_late"
    COPY_STALLED = "copy_stalled"
    COPY_UNOWNED = "copy_unowned"
    DELETION_ALARMING = "deletion_alarming"
    COPY_GROUP_TROUBLE = "copy_group_trouble"
    TOPIC_NOT_COPIED = "topic_not_copied"
    TOPIC_KEPT = "topic_kept"
    DEAD_SEGMENTS = "dead_segments"
    CACHE_DISK_UNAVAILABLE = "cache_disk_unavailable"
    CLIENT_STUCK = "client_stuck"
    LIMIT_REACHED = "limit_reached"
    MEMORY_SHORT = "memory_short"
    NO_OPEN_FILE = "no_open_file"
    OPEN_FILES_FEW = "open_files_few"
    CONFIG_ODD = "config_odd"
    CONFIG_REFUSED = "config_refused"
    RESTART_NEEDED = "restart_needed"
    SNAPSHOT_FAILS = "snapshot_fails"
    AUDIT_LOG_FAILS = "audit_log_fails"
    STATUS_SECTION_FAILED = "status_section_failed"


class TroubleView(TypedDict):
    """One trouble as JSON has it."""

    id: str
    severity: str
    about: str
    what: str
    runbook: str


@dataclass(frozen=True, slots=True)
class Trouble:
    """What is known of it beforehand.

    `about`: the part that it concerns. `section`: its page of the guide and the heading there. `means`, `remedy`: the
    cause, and what to do. `degrades`: it is a complaint. `says_remedy`: who tells of it ends with what is to be done in
    that case.
    """

    severity: Severity
    about: str
    section: str
    means: str
    remedy: str
    degrades: bool = False
    says_remedy: bool = False

    @property
    def runbook(self) -> str:
        """Return where the guide tells more."""
        page, _, heading = self.section.partition("#")
        return f"{GUIDE}/{page}.md#{heading}"

    def sentence(self, cause: str) -> str:
        """Return what there is, from the cause to the remedy."""
        return cause if self.says_remedy else f"{cause}; {self.remedy}"


_CRITICAL, _WARNING = Severity.CRITICAL, Severity.WARNING

# A row of two or three lines each; the formatter would make eight of them.
# fmt: off
TROUBLES: Final[Mapping[TroubleId, Trouble]] = {
    TroubleId.STARTING: Trouble(
        _WARNING, "start", "monitor#tidegatenotready", "it has begun a moment ago and reads what it needs", "wait"),
    TroubleId.DRAINING: Trouble(
        _WARNING, "end", "deploy#stopping-and-rolling-restarts", "it was asked to stop",
        "nothing: clients go elsewhere"),
    TroubleId.CATALOG_NOT_READ: Trouble(
        _CRITICAL, "catalog", "troubleshoot#the-metadata-topic-is-not-read",
        "the metadata topic cannot be read, or not as a whole",
        "mend what the reason names: a right, a broker, the topic"),
    TroubleId.UPSTREAM_UNAVAILABLE: Trouble(
        _CRITICAL, "upstream", "monitor#tidegatebrokerssilent", "no broker answers",
        "check the brokers, the network and `upstream.*` with `tidegate check FILE`", says_remedy=True),
    TroubleId.BROKER_SILENT: Trouble(
        _CRITICAL, "upstream", "monitor#tidegatebrokerssilent", "brokers do not answer Tidegate's own questions",
        "start them, open the way to them, or mend their `advertised.listeners`; a refused sign-in: `upstream.sasl.*`"),
    TroubleId.BROKER_WITHHELD: Trouble(
        _CRITICAL, "upstream", "deploy#network-and-ports",
        "a broker's port cannot be listened at, so clients do not hear of that broker",
        "free the port, or change the key that the reason names", degrades=True, says_remedy=True),
    TroubleId.TIER_UNAVAILABLE: Trouble(
        _CRITICAL, "tier", "secure#the-bucket", "the object store does not answer, or not as it should",
        "check bucket, prefix, credentials and the way to the store", says_remedy=True),
    TroubleId.TASK_FAILS: Trouble(
        _CRITICAL, "tasks", "monitor#tidegatetaskfails",
        "a background task ends again and again by a fault of Tidegate's", "report log `task_failed`, and restart"),
    TroubleId.NO_NEW_WORKER: Trouble(
        _CRITICAL, "workers", "size#workers", "no worker can be started any more; those that run serve on",
        "look for what killed processes of Tidegate's (the kernel, if memory is short), and restart when it suits",
        degrades=True),
    TroubleId.WORKER_DIES: Trouble(
        _CRITICAL, "workers", "size#workers", "a worker dies again and again; the others serve on",
        "look for its last log lines and for the clients in `worker_died`; a reload (SIGHUP) tries it at once",
        degrades=True),
    TroubleId.WORKER_DOWN: Trouble(
        _WARNING, "workers", "size#workers", "a worker has ended or says nothing; it is started again",
        "look for its last log lines; if memory was short, lower `memory.max.bytes`", degrades=True),
    TroubleId.CATALOG_FULL: Trouble(
        _WARNING, "catalog", "monitor#tidegatedegraded",
        "there are more segments than the catalog may hold, and brokers read what is left out",
        "raise `catalog.segments.max`, and the memory for it", says_remedy=True),
    TroubleId.METADATA_PARTITION_NOT_READ: Trouble(
        _WARNING, "catalog", "monitor#tidegatemetadatapartitionproblems",
        "a metadata partition is not read, so new segments that it tells of are not known",
        "bring its leader back, or grant Read on the topic", degrades=True),
    TroubleId.METADATA_TOPIC_UNSAFE: Trouble(
        _CRITICAL, "copy", "monitor#tidegatemetadatatopicunsafe",
        "in standalone mode, the metadata topic is not as it must be, so nothing is deleted",
        "do as the reason says, and do not restart before", degrades=True, says_remedy=True),
    TroubleId.IDENTITY_UNCLEAR: Trouble(
        _WARNING, "upstream", "secure#acls-of-tidegates-own-identity",
        "two identities could read the metadata topic, and no key says which", "set `metadata.identity`", degrades=True,
        says_remedy=True),
    TroubleId.CERTIFICATE_EXPIRED: Trouble(
        _CRITICAL, "client", "monitor#tidegatecertificateexpiry", "the certificate that clients see has expired",
        "renew it", degrades=True, says_remedy=True),
    TroubleId.CERTIFICATE_NOT_YET_VALID: Trouble(
        _CRITICAL, "client", "troubleshoot#addresses-and-certificates",
        "the certificate that clients see is not valid yet",
        "check the clock of this machine and of the one that made it", degrades=True, says_remedy=True),
    TroubleId.CERTIFICATE_NAMES: Trouble(
        _CRITICAL, "client", "troubleshoot#addresses-and-certificates",
        "the certificate is not for a host that clients get", "add the name to it, or change the key", degrades=True,
        says_remedy=True),
    TroubleId.CERTIFICATE_ISSUER: Trouble(
        _CRITICAL, "client", "troubleshoot#addresses-and-certificates", "the file lacks the certificate of its issuer",
        "append it, unless it is the root that clients trust", degrades=True, says_remedy=True),
    TroubleId.CERTIFICATE_EXPIRES_SOON: Trouble(
        _WARNING, "client", "monitor#tidegatecertificateexpiry", "the certificate that clients see expires soon",
        "renew it", degrades=True, says_remedy=True),
    TroubleId.HOST_NOT_FOUND: Trouble(
        _CRITICAL, "client", "troubleshoot#addresses-and-certificates", "DNS does not know a host that clients get",
        "correct the name, or DNS", degrades=True, says_remedy=True),
    TroubleId.HOST_ELSEWHERE: Trouble(
        _WARNING, "client", "troubleshoot#addresses-and-certificates",
        "a host that clients get leads to another machine",
        "correct the name, or DNS; if a balancer or NAT is there, say so by proxy.advertised.port.start", degrades=True,
        says_remedy=True),
    TroubleId.HANDSHAKES_FAIL: Trouble(
        _CRITICAL, "client", "monitor#tidegatehandshakesfail", "most TLS handshakes of clients fail",
        "by their outcome, as the reason says", degrades=True, says_remedy=True),
    TroubleId.NOT_DESCRIBED: Trouble(
        _CRITICAL, "tier", "monitor#tidegatenotdescribed",
        "Tidegate may not describe topics of the tier, and brokers read all of them",
        "grant Describe, by the command in the reason", degrades=True, says_remedy=True),
    TroubleId.TIER_READS_FAIL: Trouble(
        _CRITICAL, "tier", "monitor#tidegatetierlefttobrokers",
        "the tier fails partitions, and brokers read a few of them at a time",
        "by the reason: credentials, bucket, keys, the store", degrades=True),
    TroubleId.ICEBERG_SEGMENTS: Trouble(
        _WARNING, "tier", "monitor#tidegatetierlefttobrokers", "segments are in Iceberg mode, which only brokers read",
        "nothing, unless Tidegate is to serve them: then write classic segments", degrades=True),
    TroubleId.TRANSACTION_HANGS: Trouble(
        _CRITICAL, "copy", "troubleshoot#copying",
        "a transaction stays open, and readers of committed records wait for it", "end it with kafka-transactions.sh",
        degrades=True),
    TroubleId.LOG_STARTS_UNSURE: Trouble(
        _WARNING, "copy", "troubleshoot#copying",
        "nobody tells the committed log starts, so what was deleted may be served",
        "bring the group's coordinator back, or grant the right that the reason names", degrades=True),
    TroubleId.CATALOG_BEHIND: Trouble(
        _WARNING, "catalog", "monitor#tidegatecataloglag",
        "records of the metadata topic come faster than they are read",
        "wait after a large deletion; else look for a stalled loop"),
    TroubleId.COPYING_IN_TROUBLE: Trouble(
        _CRITICAL, "copy", "troubleshoot#copying", "nothing is copied, or topics cannot be asked for",
        "mend what the reason names"),
    TroubleId.DELETIONS_STOPPED: Trouble(
        _CRITICAL, "copy", "troubleshoot#copying",
        "nothing may be deleted from the tier: the metadata topic, or this machine's clock, is not as it must be",
        "mend what the reason names", says_remedy=True),
    TroubleId.COPY_POISONED: Trouble(
        _CRITICAL, "copy", "monitor#tidegatecopypoisoned", "a partition has a batch that cannot be copied",
        "raise the log start behind it with kafka-delete-records.sh"),
    TroubleId.COPY_LATE: Trouble(
        _CRITICAL, "copy", "monitor#tidegatecopylate", "more than half of what upstream keeps is not in the tier",
        "raise what limits the copier, or upstream's retention until it has caught up"),
    TroubleId.COPY_STALLED: Trouble(
        _CRITICAL, "copy", "monitor#tidegatecopystalled",
        "records of a partition are not copied, for a reason that does not pass by itself",
        "mend what the reason names"),
    TroubleId.COPY_UNOWNED: Trouble(
        _CRITICAL, "copy", "monitor#tidegatecopyunowned", "no copier of the group has a partition",
        "take foreign members out of the group; give all copiers the same `copy.topics`"),
    TroubleId.DELETION_ALARMING: Trouble(
        _CRITICAL, "copy", "monitor#tidegatedeletionalarming", "much of a topic is to be deleted from the tier",
        "`tidegate deletions hold` if it is a mistake, `approve` if it is meant"),
    TroubleId.COPY_GROUP_TROUBLE: Trouble(
        _WARNING, "copy", "monitor#tidegatecopyunowned", "the copiers' group cannot be joined as it should be",
        "mend what the reason names"),
    TroubleId.TOPIC_NOT_COPIED: Trouble(
        _WARNING, "copy", "troubleshoot#copying", "a topic of `copy.topics` is not copied",
        "mend what the reason names, or take it out of `copy.topics`"),
    TroubleId.TOPIC_KEPT: Trouble(
        _WARNING, "copy", "troubleshoot#copying", "a topic of the tier is copied no more, and nothing of it is deleted",
        "see the reason, and `upstream.bootstrap.servers` if topics seem to be gone"),
    TroubleId.DEAD_SEGMENTS: Trouble(
        _WARNING, "copy", "monitor#tidegatedeadsegments",
        "segments of the tier hold only records that upstream has lost",
        "`tidegate deletions hold` keeps them until somebody has looked"),
    TroubleId.CACHE_DISK_UNAVAILABLE: Trouble(
        _WARNING, "cache", "monitor#tidegatediskcacheunavailable", "the cache's disk takes no blocks",
        "make room, or repair the disk; it is tried again by itself"),
    TroubleId.CLIENT_STUCK: Trouble(
        _WARNING, "client", "monitor#the-status-page", "a client takes nothing of its answer",
        "look at that client; memory that is held for it is given up when others need it"),
    TroubleId.LIMIT_REACHED: Trouble(
        _WARNING, "limit", "monitor#the-status-page", "all that a key allows is in use",
        "raise the key, or spread the clients"),
    TroubleId.MEMORY_SHORT: Trouble(
        _WARNING, "machine", "size#memory", "there is less memory than Tidegate may come to need",
        "lower `memory.max.bytes`, or raise the limit", says_remedy=True),
    TroubleId.NO_OPEN_FILE: Trouble(
        _CRITICAL, "machine", "monitor#tidegatenoopenfile", "this process can open no file or connection",
        "raise the limit (`LimitNOFILE=`, `ulimit -n`) and restart, or lower `proxy.connections.max`", degrades=True),
    TroubleId.OPEN_FILES_FEW: Trouble(
        _WARNING, "machine", "size#sockets-and-open-files", "fewer files may be open than connections may need",
        "raise the limit, or lower `proxy.connections.max`", says_remedy=True),
    TroubleId.CONFIG_ODD: Trouble(
        _WARNING, "configuration", "troubleshoot#the-configuration",
        "some keys have no effect, or not the one that you would expect", "correct them, or take them out"),
    TroubleId.CONFIG_REFUSED: Trouble(
        _WARNING, "configuration", "troubleshoot#the-configuration",
        "a changed file has a mistake, and the old configuration goes on",
        "correct the file, by `tidegate check FILE`"),
    TroubleId.RESTART_NEEDED: Trouble(
        _WARNING, "configuration", "monitor#tidegaterestartneeded",
        "keys were changed that take effect only with a restart", "restart, or put the old values back"),
    TroubleId.SNAPSHOT_FAILS: Trouble(
        _WARNING, "catalog", "monitor#tidegatesnapshotfails",
        "the catalog's snapshot cannot be written, so the next start reads the whole metadata topic",
        "check free space and rights in `catalog.snapshot.path`"),
    TroubleId.AUDIT_LOG_FAILS: Trouble(
        _WARNING, "audit", "secure#who-reads-what", "lines of the audit log are lost",
        "make room, or give the file of `audit.log` back to the user of serve"),
    TroubleId.STATUS_SECTION_FAILED: Trouble(
        _WARNING, "page", "monitor#the-status-page", "a part of the status page cannot be shown",
        "report log `status_section_failed`"),
}
# fmt: on

UNLOGGED: Final = frozenset({TroubleId.STARTING, TroubleId.DRAINING})
"""The log has lines of their own for these."""

DEGRADING: Final = frozenset(trouble for trouble, known in TROUBLES.items() if known.degrades)
"""Complaints of `/readyz`: something is served worse than it should be. The others' parts do their work."""


def view(trouble: TroubleId, cause: str, *, keeps_unready: bool = False) -> TroubleView:
    """Return it as it lasts now."""
    known = TROUBLES[trouble]
    about = "not ready" if keeps_unready else known.about
    what = known.sentence(cause)
    return TroubleView(id=trouble.value, severity=known.severity.value, about=about, what=what, runbook=known.runbook)
