"""What a run of the tests costs: core-seconds by directory, and the tests that take most, so that growth is seen.

A core-second is a second of one processor. A test is charged with what its process, and those that it has waited for,
have used since the test before it; so a broker is charged to the test behind which it is stopped.
"""

import os
from collections import Counter, defaultdict
from collections.abc import Generator
from pathlib import PurePosixPath

import pytest

DEAREST = 30
CORE_S = "core_s"
"""What a report carries from a worker to the controller beside pytest's own."""


class Costs:
    """A plugin. Each worker of pytest-xdist measures, and the controller adds up."""

    def __init__(self) -> None:
        self._seen_s = _core_s()
        self._collecting_s = 0.0
        self._core_s_of_test: dict[str, float] = defaultdict(float)
        self._seconds_of_test: dict[str, float] = defaultdict(float)

    def pytest_collection_finish(self) -> None:
        self._collecting_s += self._passed()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self) -> Generator[None, pytest.TestReport, pytest.TestReport]:
        report = yield
        report.__dict__[CORE_S] = self._passed()
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        test = report.nodeid.partition("@")[0]
        self._core_s_of_test[test] += report.__dict__.get(CORE_S, 0.0)
        self._seconds_of_test[test] += report.duration

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        output: dict[str, object] | None = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["collecting_s"] = self._collecting_s

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: object) -> None:
        self._collecting_s += getattr(node, "workeroutput", {}).get("collecting_s", 0.0)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if not self._core_s_of_test:
            return
        folders: dict[str, float] = defaultdict(float)
        cells: Counter[str] = Counter()
        for test, core_s in self._core_s_of_test.items():
            folders[_folder(test)] += core_s
            cells[_folder(test)] += 1
        in_all_s = sum(folders.values()) + self._collecting_s
        terminalreporter.section("core-seconds by directory", sep="-")
        for folder in sorted(folders, key=folders.__getitem__, reverse=True):
            terminalreporter.line(f"{folders[folder]:8.1f}  {cells[folder]:5} tests  {folder}")
        terminalreporter.line(f"{self._collecting_s:8.1f}  collecting, in all processes")
        terminalreporter.line(f"{in_all_s:8.1f}  {cells.total():5} tests  in all")
        terminalreporter.section(f"the {DEAREST} dearest tests: core-seconds, seconds", sep="-")
        for test in sorted(self._core_s_of_test, key=self._core_s_of_test.__getitem__, reverse=True)[:DEAREST]:
            terminalreporter.line(f"{self._core_s_of_test[test]:8.1f} {self._seconds_of_test[test]:8.1f}  {test}")

    def _passed(self) -> float:
        before, self._seen_s = self._seen_s, _core_s()
        return self._seen_s - before


def _core_s() -> float:
    """Used by this process and by those that it has waited for."""
    return sum(os.times()[:4])


def _folder(test: str) -> str:
    """tests/storage, or tests/storage/all."""
    parts = PurePosixPath(test.partition("::")[0]).parent.parts
    return "/".join([*parts[:2], *(["all"] if "all" in parts[2:] else [])])
