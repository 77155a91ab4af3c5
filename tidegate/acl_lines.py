"""The line of `kafka-acls.sh` that gives a right which a sentence names as missing.

Sentences about rights are made in many places, all in one form: "ACL Read on Topic orders is missing". Whose right it
is follows from topic and right: the metadata topic has an identity that reads it and one that writes it
(`metadata.identity`), all else is asked as upstream's.
"""

import re
from typing import Final

from storage.config.client_settings import client_settings
from storage.config.tier_client import TierClientConfig

METADATA_TOPIC: Final = "__remote_log_metadata"

_MISSING = re.compile(r"ACL (?P<rights>\w+(?: and \w+)*) on (?P<kind>Topic|Group) (?P<name>[^\s:]+) is missing")


def with_grant(sentence: str, config: TierClientConfig) -> str:
    """The sentence, and behind it the line that grants what it misses."""
    missing = _MISSING.search(sentence)
    if missing is None or "kafka-acls.sh" in sentence:
        return sentence
    client, rights = config.upstream, missing["rights"].split(" and ")
    if missing["name"] == METADATA_TOPIC:
        client = config.metadata_producer if {"Write", "Create"} & {*rights} else config.metadata_client
    return f"{sentence}: {client_settings(client).grant(rights, missing['kind'].lower(), [missing['name']])}"
