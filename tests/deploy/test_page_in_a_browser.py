"""The status page in a real browser, on a phone and on a desk: nothing is wider than the window, and what is wrong
comes first. Whether it looks well is for people; that it can be read is measured here."""

import html
import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest

from metrics.troubles import TroubleId, view
from tests.support.status_documents import broker, catalog, document, metadata_partition, partitions, row
from tidegate.status.model import Status
from tidegate.status.page import render_page

pytestmark = pytest.mark.needs("chromium")

LONG = "a-topic-name-as-long-as-kafka-lets-it-be-" * 6
MEASURE = """<iframe id="page" style="border:0;width:{width}px;height:{height}px" srcdoc="{page}"></iframe>
<pre id="out"></pre><script>addEventListener("load", () => {{
  const inside = document.getElementById("page").contentDocument;
  const tops = [...inside.querySelectorAll("h1, #troubles, dl, h2")].map(each => [
    each.textContent.slice(0, 40), each.getBoundingClientRect().top]);
  const style = getComputedStyle(inside.querySelector("#troubles li"));
  document.getElementById("out").textContent = JSON.stringify({{
    width: inside.documentElement.scrollWidth, tops, shown: inside.body.innerText, border: style.borderLeftWidth}});
}});</script>"""


def troubled() -> Status:
    stream: dict[str, Any] = {
        "client": "10.3.4.5:41233",
        "client_id": LONG[:200],
        "sign_in_name": "reader",
        "groups": ["billing", "shipping"],
        "topic": LONG,
        "partition": 3,
        "about_offset": 55_123,
        "lag_offsets": 64_877,
        "bytes_per_s": 41_000_000,
        "waits_for": "consumer",
        "ahead_bytes": 33_000_000,
        "idle_ms": 12,
    }
    return document(
        brokers=[broker(1), broker(2, reachable=False, reason="connection refused")],
        catalog=catalog(metadata_partition(0), metadata_partition(1, lag=7)),
        partitions=partitions(*(row(LONG, number, problem="its broker does not tell") for number in range(20))),
        streams={"total": 1, "rows": [stream]},
        troubles=[
            view(TroubleId.CATALOG_BEHIND, "metadata partition 1 is 7 records behind"),
            view(TroubleId.BROKER_SILENT, "broker 2 (kafka:9092) does not answer: connection refused"),
        ],
    )


def seen(folder: Path, width: int, height: int) -> dict[str, Any]:
    """Return what a browser makes of the page in a window of that size, in CSS pixels."""
    harness, page = folder / "harness.html", html.escape(render_page(troubled()), quote=True)
    harness.write_text(MEASURE.format(width=width, height=height, page=page), "utf-8")
    command = ["chromium", "--headless", "--no-sandbox", "--disable-gpu", f"--user-data-dir={folder}/profile"]
    done = subprocess.run([*command, "--dump-dom", harness.as_uri()], capture_output=True, text=True, timeout=90)
    found = re.search(r'<pre id="out">(.*?)</pre>', done.stdout, re.DOTALL)
    assert found is not None, done.stderr
    measured: dict[str, Any] = json.loads(html.unescape(found[1]))
    return measured


@pytest.mark.parametrize(("width", "height"), [(390, 844), (1280, 800)], ids=["phone", "desktop"])
def test_what_is_wrong_is_seen_first_and_nothing_runs_out_of_the_window(
    width: int, height: int, tmp_path: Path
) -> None:
    page = seen(tmp_path, width, height)
    assert page["width"] <= width
    tops = dict(page["tops"])
    names = [name for name, _ in page["tops"]]
    assert names[0].startswith("Tidegate ready, with trouble")
    assert "metadata partition 1" in names[1]
    assert [top for _, top in page["tops"]] == sorted(tops.values())
    assert names[3].startswith("Readers of the tier")
    assert page["tops"][3][1] < height, "who reads is on the first screen"
    assert page["border"] == "5px", "the style is in force"
    for word in ("probably of billing, shipping", "signed in as reader", "39.1 MiB/s", "connection refused"):
        assert word in page["shown"]
