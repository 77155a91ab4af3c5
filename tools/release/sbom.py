"""A bill of materials: the libraries of a lock, and who asks for whom, as CycloneDX 1.6 has it in JSON.

The lock is what `uv pip compile` writes: `name==version ; marker \\` and below it `# via` with who asks for it. Nothing
is looked up, so the same lock gives the same bytes.
"""

import json
import re
import uuid
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime

_PIN = re.compile(r"^(?P<name>[a-z0-9][a-z0-9._-]*)==(?P<version>[^\s;]+)(?: ; (?P<marker>[^\\]+?))? \\?$")
_VIA = re.compile(r"^ +# +(?:via )?(?P<asks>[a-z0-9][a-z0-9._-]*)")


def bill_of_materials(lock: str, *, name: str, version: str, license_id: str, epoch_s: int) -> bytes:
    """The bill of `name`, which has what the lock has."""
    pins = {pin["name"]: pin for pin in _pins(lock)}
    refs = {each: f"pkg:pypi/{each}@{pin['version']}" for each, pin in pins.items()}
    refs[name] = f"pkg:pypi/{name}@{version}"
    asked: dict[str, list[str]] = {ref: [] for ref in refs.values()}
    for each, who in _asked(lock):
        asked[refs[who]].append(refs[each])
    described = {
        "type": "application",
        "bom-ref": refs[name],
        "name": name,
        "version": version,
        "purl": refs[name],
        "licenses": [{"license": {"id": license_id}}],
    }
    document = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, refs[name] + lock)}",
        "version": 1,
        "metadata": {
            "timestamp": datetime.fromtimestamp(epoch_s, UTC).isoformat().replace("+00:00", "Z"),
            "component": described,
        },
        "components": [_component(pin, refs[each]) for each, pin in pins.items()],
        "dependencies": [{"ref": ref, "dependsOn": sorted(below)} for ref, below in asked.items()],
    }
    return (json.dumps(document, indent=2) + "\n").encode()


def _component(pin: Mapping[str, str | None], ref: str) -> dict[str, object]:
    found: dict[str, object] = {"type": "library", "bom-ref": ref, "name": pin["name"], "version": pin["version"]}
    if pin["marker"]:
        found["properties"] = [{"name": "python:marker", "value": pin["marker"]}]
    return found | {"purl": ref}


def _pins(lock: str) -> Iterator[Mapping[str, str | None]]:
    yield from (match.groupdict() for line in lock.splitlines() if (match := _PIN.match(line)))


def _asked(lock: str) -> Iterator[tuple[str, str]]:
    """Library, and one that asks for it."""
    name = ""
    for line in lock.splitlines():
        if pin := _PIN.match(line):
            name = pin["name"]
        elif (via := _VIA.match(line)) and via["asks"] != "via":
            yield name, via["asks"]
