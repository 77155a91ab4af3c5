"""A class of our own for a broker: compiled against Kafka's jars, beside which it is found."""

import subprocess
import zipfile
from pathlib import Path

from tests.support.needs import JARS


def jars_with(source: Path, folder: Path) -> Path:
    """A new folder of Kafka's jars and one with the classes of a Java file; what KafkaCluster takes as `jars`."""
    jars, classes = folder / "jars", folder / "classes"
    jars.mkdir()
    for jar in JARS.glob("*.jar"):
        (jars / jar.name).symlink_to(jar)
    subprocess.run(["javac", "-cp", f"{JARS}/*", "-d", str(classes), str(source)], check=True, timeout=60)
    with zipfile.ZipFile(jars / f"{source.stem}.jar", "w") as archive:
        for compiled in classes.glob("*.class"):
            archive.write(compiled, compiled.name)
    return jars
