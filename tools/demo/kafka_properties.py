"""What the nodes of our Kafka read as server.properties: a pure function of a plan
(docs/kafka-tier.md#kafka-with-a-tier).

Chosen for speed on a small machine: few internal partitions, short intervals. Nothing here changes what a client
or a follower of the metadata topic may see.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

HOST = "127.0.0.1"
SUPER_USER = "admin"
METADATA_PARTITIONS = 5

_ALWAYS = {
    "controller.listener.names": "CONTROLLER",
    "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,CONTROLLER:PLAINTEXT",
    "inter.broker.listener.name": "PLAINTEXT",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "5",
    "transaction.state.log.num.partitions": "2",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.num.partitions": "2",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.cleaner.dedupe.buffer.size": "4194304",
    "log.retention.check.interval.ms": "500",
    "log.initial.task.delay.ms": "500",
    # A broker that was killed is missed soon, and one with its id on another port is let in soon.
    "broker.session.timeout.ms": "3000",
    "broker.heartbeat.interval.ms": "500",
    "num.network.threads": "2",
    "num.io.threads": "4",
    "remote.log.storage.system.enable": "true",
    "remote.log.storage.manager.class.name": "org.apache.kafka.server.log.remote.storage.LocalTieredStorage",
    "remote.log.metadata.manager.listener.name": "PLAINTEXT",
    "remote.log.manager.task.interval.ms": "300",
    "rlmm.config.remote.log.metadata.topic.num.partitions": str(METADATA_PARTITIONS),
    "rlmm.config.remote.log.metadata.topic.min.isr": "1",
    # A broker that stops waits up to 30 s for what it can no longer publish to itself.
    "rlmm.config.remote.log.metadata.producer.request.timeout.ms": "5000",
    "rlmm.config.remote.log.metadata.producer.delivery.timeout.ms": "10000",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterPlan:
    """What all nodes agree on."""

    controller_id: int
    controller_port: int
    replication_factor: int
    tier_dir: Path
    sasl_plain_users: Mapping[str, str] = field(default_factory=dict)
    properties: Mapping[str, str] = field(default_factory=dict)
    """The caller's, last: they win."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodePlan:
    """One node. `plaintext_port` None makes it a controller and nothing else."""

    node_id: int
    data_dir: Path
    plaintext_port: int | None = None
    sasl_port: int | None = None


def server_properties(cluster: ClusterPlan, node: NodePlan) -> dict[str, str]:
    """Every key that the node is started with."""
    properties = dict(_ALWAYS)
    is_controller = node.node_id == cluster.controller_id
    ports = {"PLAINTEXT": node.plaintext_port, "SASL_PLAINTEXT": node.sasl_port}
    advertised = [f"{name}://{HOST}:{port}" for name, port in ports.items() if port is not None]
    listeners = [*advertised, f"CONTROLLER://{HOST}:{cluster.controller_port}"] if is_controller else advertised
    roles = ["broker"] if advertised else []
    properties["process.roles"] = ",".join([*roles, "controller"] if is_controller else roles)
    properties["node.id"] = str(node.node_id)
    properties["controller.quorum.voters"] = f"{cluster.controller_id}@{HOST}:{cluster.controller_port}"
    properties["listeners"] = ",".join(listeners)
    if advertised:
        properties["advertised.listeners"] = ",".join(advertised)
    properties["log.dirs"] = str(node.data_dir)
    properties["rsm.config.dir"] = str(cluster.tier_dir)
    for key in (
        "offsets.topic.replication.factor",
        "transaction.state.log.replication.factor",
        "share.coordinator.state.topic.replication.factor",
        "rlmm.config.remote.log.metadata.topic.replication.factor",
    ):
        properties[key] = str(cluster.replication_factor)
    properties.update(_sasl_properties(cluster.sasl_plain_users))
    properties.update(cluster.properties)
    if not advertised:
        # A controller has neither partitions nor listeners for the remote log's own clients.
        del properties["inter.broker.listener.name"], properties["remote.log.metadata.manager.listener.name"]
    return properties


def properties_text(properties: Mapping[str, str]) -> str:
    """A Java-properties file of these pairs, keys in order.

    Raises:
        ValueError: a value holds a line break; none of Kafka's does.
    """
    lines = []
    for key, value in sorted(properties.items()):
        if "\n" in value or "\r" in value:
            raise ValueError(f"{key}: a line break in {value!r}")
        lines.append(f"{key}={value.replace(chr(92), chr(92) * 2)}\n")
    return "".join(lines)


def _sasl_properties(users: Mapping[str, str]) -> dict[str, str]:
    if not users:
        return {}
    entries = " ".join(f'user_{name}="{password}"' for name, password in users.items())
    plain = f"org.apache.kafka.common.security.plain.PlainLoginModule required {entries};"
    scram = "org.apache.kafka.common.security.scram.ScramLoginModule required;"
    listener = "listener.name.sasl_plaintext"
    return {
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        # ANONYMOUS is a client of the plaintext listener: the brokers themselves, and the tests' own admin.
        "super.users": f"User:ANONYMOUS;User:{SUPER_USER}",
        f"{listener}.sasl.enabled.mechanisms": "PLAIN,SCRAM-SHA-256,SCRAM-SHA-512",
        f"{listener}.plain.sasl.jaas.config": plain,
        f"{listener}.scram-sha-256.sasl.jaas.config": scram,
        f"{listener}.scram-sha-512.sasl.jaas.config": scram,
    }
