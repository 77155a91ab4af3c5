"""The line of `kafka-acls.sh` that gives a right which a sentence names as missing.

Sentences about rights are made in many places, all in one form: "ACL Read on Topic orders is missing". Whose right it
is follows from topic and right: the metadata topic has an identity that reads it and one that writes it
(`metadata.identity`), all else is asked as upstream's.
"""

import re
import shlex
from typing import Final

from cryptography.x509 import load_pem_x509_certificate

from storage.config.model import ClientSecurity, SecurityProtocol, UpstreamConfig
from storage.config.tier_client import TierClientConfig

METADATA_TOPIC: Final = "__remote_log_metadata"

_MISSING = re.compile(r"ACL (?P<rights>\w+(?: and \w+)*) on (?P<kind>Topic|Group) (?P<name>[^\s:]+) is missing")


def with_grant(sentence: str, config: TierClientConfig) -> str:
    """The sentence, and behind it the line that grants what it misses."""
    missing = _MISSING.search(sentence)
    if missing is None:
        return sentence
    client, rights = config.upstream, missing["rights"].split(" and ")
    if missing["name"] == METADATA_TOPIC:
        client = config.metadata_producer if {"Write", "Create"} & {*rights} else config.metadata_client
    line = grant_line(client, rights, missing["kind"].lower(), missing["name"])
    return f"{sentence}: {line}"


def grant_line(client: UpstreamConfig, rights: list[str], kind: str, name: str) -> str:
    """What an administrator types; `admin.properties` stands for how that one signs in."""
    words = ["kafka-acls.sh", "--bootstrap-server", str(client.bootstrap_servers[0])]
    if client.security.protocol is not SecurityProtocol.PLAINTEXT:
        words += ["--command-config", "admin.properties"]
    words += ["--add", "--allow-principal", principal(client.security)]
    for right in rights:
        words += ["--operation", right]
    return shlex.join([*words, f"--{kind}", name])


def principal(security: ClientSecurity) -> str:
    """Who the brokers take us for, where they map no names."""
    if security.sasl is not None:
        return f"User:{security.sasl.username}"
    if security.tls is not None and security.tls.certificate_chain_pem is not None:
        return f"User:{load_pem_x509_certificate(security.tls.certificate_chain_pem).subject.rfc4514_string()}"
    return "User:ANONYMOUS"
