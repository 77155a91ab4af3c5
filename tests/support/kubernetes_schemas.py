"""JSON schemas that kubeconform judges manifests by, out of packages: `python -m tests.support.kubernetes_schemas DIR`.

DIR holds the wheel of kubernetes-validate, which has Kubernetes' own schemas. Those of custom resources are made from
the definitions (CRDs) in the Go modules of the projects that own them: MODULE@VERSION:PATH, each an argument. What
is written: DIR/v1.25.0 and the like, and DIR/custom, with the names that kubeconform calls kind and suffix.
"""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import yaml

VERSIONS = ("1.25.0", "1.37.0")
"""The first and the last that the package has; the first is the chart's `kubeVersion`."""


class _Loader(yaml.SafeLoader):
    """Takes the operator `=`, an item of a list in PodMonitor's definition, for text as YAML 1.2 does."""


_Loader.add_constructor("tag:yaml.org,2002:value", lambda _, node: str(node.value))


def main(arguments: list[str]) -> int:
    """Write the schemas; arguments as above."""
    folder = Path(arguments[0])
    (wheel,) = folder.glob("kubernetes_validate-*.whl")
    with ZipFile(wheel) as archive:
        for version in VERSIONS:
            _copy_kubernetes_own(archive, version, folder / f"v{version}")
    wheel.unlink()
    (folder / "custom").mkdir()
    for argument in arguments[1:]:
        module, _, path = argument.partition(":")
        _write_custom(_downloaded(module) / path, folder / "custom")
    return 0


def _copy_kubernetes_own(archive: ZipFile, version: str, folder: Path) -> None:
    """The strict ones, which know no other keys than those that they name. Their references lead to a web address,
    which is taken out: what remains is the file beside them."""
    folder.mkdir()
    begin = f"kubernetes_validate/kubernetes-json-schema/v{version}-local-strict/"
    for name in archive.namelist():
        if name.startswith(begin):
            schema = json.loads(archive.read(name).replace(b'"/api/_definitions.json', b'"_definitions.json'))
            schema.pop("$id", None)
            (folder / name.removeprefix(begin)).write_text(json.dumps(schema), "utf-8")


def _downloaded(module: str) -> Path:
    """A Go module's folder in the module cache."""
    command = ["go", "mod", "download", "-json", module]
    answer = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd="/")
    return Path(json.loads(answer.stdout)["Dir"])


def _write_custom(path: Path, folder: Path) -> None:
    """The schema of each version that an API server would serve."""
    (definition,) = filter(None, yaml.load_all(path.read_text("utf-8"), _Loader))
    spec = definition["spec"]
    group = spec["group"].partition(".")[0]
    for version in spec["versions"]:
        if version["served"]:
            name = f"{spec['names']['kind'].lower()}-{group}-{version['name']}.json"
            schema = strict(version["schema"]["openAPIV3Schema"])
            (folder / name).write_text(json.dumps(schema), "utf-8")


def strict(schema: Any) -> Any:
    """The schema with no other keys than those that it names, as an API server's strict validation has it."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    found = {key: strict(value) for key, value in schema.items()}
    is_open = schema.get("x-kubernetes-preserve-unknown-fields") or "additionalProperties" in schema
    if schema.get("type") == "object" and isinstance(schema.get("properties"), dict) and not is_open:
        found["additionalProperties"] = False
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
