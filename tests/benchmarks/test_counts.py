"""What answers cost in calls and copies, and two versions in turns: once on little data."""

import json

import pytest

from benchmarks import cost
from benchmarks.support import cost_rows
from benchmarks.support.counts import ANSWER_BYTES, ANSWERS, ROOT, missing, system_calls

TRACE = """\
12 recvfrom(14, ""..., 65536, 0, NULL, NULL) = 4096
12 read(3, <unfinished ...>
13 futex(0x7f00, FUTEX_WAIT_PRIVATE, 0, NULL <unfinished ...>
12 <... read resumed>""..., 512) = 100
13 <... futex resumed>) = 0
12 --- SIGCHLD {si_signo=SIGCHLD, si_code=CLD_EXITED} ---
12 recvfrom(14, 0x7f00, 65536, 0, NULL, NULL) = -1 EAGAIN (Resource temporarily unavailable)
12 splice(4, NULL, 7, NULL, 65536, SPLICE_F_NONBLOCK) = 65536
12 sendmsg(15, {msg_name=NULL, msg_namelen=0, msg_iov=[{iov_base=""..., iov_len=7}], msg_iovlen=1}, 0) = 7
13 +++ exited with 0 +++
12 epoll_wait(5, <detached ...>
"""


def test_a_call_that_another_thread_interrupts_is_counted_once_with_its_bytes() -> None:
    assert system_calls(iter(TRACE.splitlines())) == {
        "system_calls": 6,
        "futex": 1,
        "kernel_bytes": 4096 + 100 + 7,
        "spliced_bytes": 65536,
    }


def test_what_counting_needs_and_is_absent_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    assert missing() == "--counts needs Debian's strace and gcc: apt-get install strace gcc"


@pytest.mark.needs("java", "kafka", "linux", "strace", "cc")
@pytest.mark.integration
def test_what_100_answers_from_memory_cost_is_counted(capsys: pytest.CaptureFixture[str]) -> None:
    """All of a row's figures, in a process that is profiled and in one that is traced."""
    assert cost.main(["--counts", "--rows", "memory", "--rounds", "1", "--megabytes", "16", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row.pop("row") == "memory"
    found = {name: figure["least"] for name, figure in row.items()}
    assert found["calls"] > found["awaits"] > found["steps"] >= ANSWERS
    assert found["system_calls"] >= ANSWERS
    # Each byte is sent once, and received and joined nowhere.
    sent_bytes = ANSWERS * ANSWER_BYTES
    assert 0.9 * sent_bytes < found["kernel_bytes"] < 1.1 * sent_bytes
    assert found["memory_bytes"] < 0.1 * sent_bytes
    assert found["spliced_bytes"] == 0


@pytest.mark.needs("java", "kafka", "linux")
@pytest.mark.integration
def test_two_versions_are_read_in_turns_and_each_pair_is_shown(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cost_rows, "SECONDS", 0.2)
    monkeypatch.setattr(cost, "BEFORE_QUARTILE_MAX", 1e9)
    assert cost.main(["--before", str(ROOT), "--rows", "relay", "--rounds", "3", "--megabytes", "16"]) == 0
    ratios, summary = capsys.readouterr().out.splitlines()
    assert len(ratios.removeprefix("relay: ").split()) == 3
    assert "3 pairs" in summary


@pytest.mark.parametrize(("dearer", "holds"), [(1.05, True), (1.06, False)])
def test_a_row_holds_by_the_lower_quartile_of_its_pairs(dearer: float, holds: bool) -> None:
    """Three in four pairs may be as bad as the machine makes them."""
    text, found = cost.judged("relay", [*[dearer] * 8, *[2.0] * 12])
    assert found is holds
    assert text.count("2.000") == 12 + 3
