"""The program that docs/kafka-tier.md shows is run as it stands there."""

import os
import re
import subprocess
import sys
from pathlib import Path

from tests.support.segments import filled_segment, segment_files

ROOT = Path(__file__).parents[2]


def test_both_seams_work_in_ten_lines_of_plain_python(tmp_path: Path) -> None:
    """Given a segment's files, when the document's program runs, then it finds and reads back the segment."""
    (program,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "kafka-tier.md").read_text(), re.DOTALL)
    segment = filled_segment(batch_count=10, records_per_batch=10)
    files = segment_files(tmp_path / "local", segment)
    for name, path in (
        ("a.log", files.log_segment),
        ("a.index", files.offset_index),
        ("a.timeindex", files.time_index),
    ):
        os.link(path, tmp_path / name)
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["0", "99", str(len(segment.log))]
