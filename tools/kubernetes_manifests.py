"""Writes the manifests of deploy/kubernetes out of the chart: `python -m tools.kubernetes_manifests`.

For those who do not use Helm. Needs Helm, which `make test-tools` builds.
"""

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CHART = ROOT / "deploy" / "helm" / "tidegate"
FOLDER = ROOT / "deploy" / "kubernetes"
BUILT_HELM = ROOT / "build" / "tools" / "helm"

_HEADER = """\
# The chart of deploy/helm/tidegate, for those who do not use Helm. Written by `python -m tools.kubernetes_manifests`;
# it is what this prints:
#
#   helm template tidegate deploy/helm/tidegate --namespace kafka --values deploy/kubernetes/{values}
#
# Change it to your cluster's addresses, ids of brokers and bucket, and then:
#
#   kubectl --namespace kafka create secret generic tidegate-s3 \\
#       --from-literal=S3_ACCESS_KEY=… --from-literal=S3_SECRET_KEY=…
#   kubectl apply --filename deploy/kubernetes/{manifest}
"""


def main() -> int:
    """Write each manifest."""
    for path, text in manifests():
        path.write_text(text, "utf-8")
    return 0


def manifests() -> Iterator[tuple[Path, str]]:
    """Path and text of the manifest of each values*.yaml."""
    for values in sorted(FOLDER.glob("values*.yaml")):
        path = FOLDER / values.name.replace("values", "tidegate")
        rendered = template("tidegate", CHART, "--namespace", "kafka", "--values", str(values))
        lines = [line.rstrip() for line in rendered.splitlines()]
        yield path, _HEADER.format(values=values.name, manifest=path.name) + "\n".join(lines) + "\n"


def template(release: str, chart: Path, *arguments: str) -> str:
    """Return what `helm template` prints.

    Raises:
        subprocess.CalledProcessError: Helm refuses the values; `stderr` says why.
    """
    helm = str(BUILT_HELM) if BUILT_HELM.exists() else shutil.which("helm") or "helm"
    command = [helm, "template", release, str(chart), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


if __name__ == "__main__":
    sys.exit(main())
