"""The house rules that no linter knows: sizes, leftovers, names of machines, mirror, file map.

A rule that must be broken is broken by an entry below with its reason, never by a looser rule.
"""

import ast
import importlib
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
LICENSE = ROOT / "LICENSE"
PACKAGES = ("metrics", "pipeline", "protocol", "proxy", "storage")
MIRRORED_PACKAGES = ("metrics", "pipeline", "protocol", "proxy", "storage")

FILE_LINES_MAX = 700
TEST_FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
COLUMNS_MAX = 120

CODE_SUFFIXES = (".go", ".java", ".js", ".py", ".sh", ".toml")
CODE_NAMES = ("Makefile", "run")

WITHOUT_TEST_FILE = {
    "pipeline/brokers/errors.py": "declares errors; those who raise them test them",
    "pipeline/decoding/batch_group.py": "a step of the decoder: tests/pipeline/decoding/test_record_decoder.py",
    "pipeline/decoding/batch_pieces.py": "a step of the decoder: tests/pipeline/decoding/test_record_decoder.py",
    "pipeline/decoding/record_fields.py": "a step of it: tests/pipeline/decoding/test_record_decoder_faults.py",
    "pipeline/decoding/row_selection.py": "a step of the decoder: tests/pipeline/decoding/test_record_decoder.py",
    "pipeline/jobs/audit.py": "needs Spark: tests/spark/test_audit_job.py",
    "pipeline/jobs/audit_command.py": "needs Spark: tests/spark/test_audit_command.py",
    "pipeline/jobs/audit_record.py": "needs Spark: tests/spark/test_audit_job.py",
    "pipeline/jobs/backfill.py": "needs Spark: tests/spark/test_backfill_job.py",
    "pipeline/jobs/job_context.py": "declares what jobs are given: tests/pipeline/jobs/test_command_line.py",
    "pipeline/jobs/job_folder.py": "needs Spark: tests/spark/test_backfill_job.py",
    "pipeline/jobs/segment_work.py": "needs Spark: tests/spark/test_stats_job.py",
    "pipeline/jobs/stats.py": "needs Spark: tests/spark/test_stats_job.py",
    "pipeline/jobs/topics.py": "tests/pipeline/jobs/test_stats_command.py",
    "pipeline/schema.py": "declares the columns: tests/spark/test_data_source.py compares them with the Kafka source's",
    "pipeline/tasks.py": "declares values",
    "protocol/errors.py": "declares errors and codes; those who raise them test them",
    "protocol/identifiers.py": "declares numbers; tests/protocol/test_versions.py holds them to Kafka's schemas",
    "proxy/catalog_start.py": "wiring: tests/integration/test_serve.py",
    "proxy/config/build.py": "the last step of load: tests/proxy/config/test_load.py",
    "proxy/config/model.py": "declares the result of load: tests/proxy/config/test_load.py",
    "proxy/exit_codes.py": "declares numbers: tests/proxy/test_cli.py",
    "proxy/demo/kafka_admin.py": "asks a real broker: tests/integration/test_kafka_cluster.py",
    "proxy/demo/kafka_cluster.py": "runs a real broker: tests/integration/test_kafka_cluster.py",
    "proxy/demo/kafka_metrics.py": "asks a real broker: tests/integration/test_kafka_cluster.py",
    "proxy/demo/kafka_process.py": "runs a real broker: tests/integration/test_kafka_cluster.py",
    "proxy/demo/kafka_properties.py": "a broker reads it: tests/integration/test_kafka_cluster.py",
    "storage/config/broker_config.py": "one of the sources: tests/storage/config/test_sources.py",
    "storage/config/build.py": "a step of load_tier_config: tests/storage/config/test_tier_client.py",
    "storage/config/errors.py": "declares one error",
    "storage/config/keys.py": "a part of the tables: tests/proxy/config/test_keys.py",
    "storage/config/model.py": "declares parts of the result: tests/storage/config/test_tier_client.py",
    "storage/config/tier_keys.py": "a part of the tables: tests/proxy/config/test_keys.py",
    "storage/config/values.py": "a step of load_tier_config: tests/storage/config/test_tier_client.py",
    "storage/cache/flight.py": "waited for by its users: tests/storage/cache/test_gets.py, test_segment_entries.py",
    "storage/errors.py": "declares errors; those who raise them test them",
    "proxy/request_handlers.py": "an interface; proxy.client_exchanges is it",
    "proxy/client_exchanges.py": "delegates; tests/proxy/test_fetch_service.py and test_list_offsets_service.py",
    "proxy/fetch_answer.py": "tests/proxy/test_assembly.py",
    "metrics/cache_probes.py": "probes like the others: tests/metrics/test_probes.py",
    "storage/object_store/object_store.py": "an interface; its suite in tests/contract runs on every store",
    "storage/remote_log_metadata_manager.py": "an interface; its suite in tests/contract runs on every manager",
    "storage/remote_storage_manager.py": "an interface; its suite in tests/contract runs on every format",
}
"""Modules without tests/<package>/test_<module>.py, and where their tests are instead."""

# Written in two parts each, so that this file does not hold what it forbids.
LEFTOVERS = ("FIX" + "ME", "TO" + "DO", "X" + "XX:", "HA" + "CK:")
REGISTRY_HOSTS = tuple(
    ".".join(parts)
    for parts in (
        ("pypi", "org"),
        ("pythonhosted", "org"),
        ("repo", "maven", "apache", "org"),
        ("repo1", "maven", "org"),
        ("npmjs", "org"),
        ("crates", "io"),
        ("proxy", "golang", "org"),
        ("deb", "debian", "org"),
    )
)
MACHINE_PATH = re.compile(r"(?<![\w./-])/(?:work|root|home|Users)/\w")
SUPPRESSION = re.compile(r"# (?:type: ignore|noqa)(?:\[[\w, -]+\]|: [A-Z]+\d+(?:, [A-Z]+\d+)*)?(?P<reason>.*)")


def project_files() -> list[Path]:
    """What git tracks or would track. A tree without git (a source archive) is taken whole but for hidden folders."""
    command = ["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    try:
        listed = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, check=True).stdout
    except (OSError, subprocess.CalledProcessError):
        found = (path for path in ROOT.rglob("*") if path.is_file())
        skipped = (".venv", "build", "dist")
        return [path for path in found if path.relative_to(ROOT).parts[0] not in skipped]
    return [ROOT / name for name in sorted(listed.decode().split("\0")) if name and (ROOT / name).is_file()]


FILES = project_files()
CODE_FILES = [path for path in FILES if path.suffix in CODE_SUFFIXES or path.name in CODE_NAMES]
PYTHON_FILES = [path for path in FILES if path.suffix == ".py"]
PACKAGE_FILES = [path for path in PYTHON_FILES if path.relative_to(ROOT).parts[0] in PACKAGES]


def relative(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def none_of(found: list[str], what: str = "") -> None:
    """Fail with every finding on a line of its own; an assert would cut the list short."""
    if found:
        pytest.fail("\n".join([*([what] if what else []), *found]), pytrace=False)


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8", errors="replace")


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(ast.parse(text_of(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_files_are_short() -> None:
    too_long = []
    for path in CODE_FILES:
        lines = text_of(path).count("\n")
        limit = TEST_FILE_LINES_MAX if relative(path).startswith("tests/") else FILE_LINES_MAX
        if lines > limit:
            too_long.append(f"{relative(path)}: {lines} lines, at most {limit}")
    none_of(too_long)


def test_functions_are_short() -> None:
    too_long = []
    for path in PYTHON_FILES:
        for function in functions(path):
            lines = (function.end_lineno or function.lineno) - function.lineno + 1
            if lines > FUNCTION_LINES_MAX:
                too_long.append(f"{relative(path)}:{function.lineno} {function.name}: {lines} lines")
    none_of(too_long)


def test_lines_fit_the_columns() -> None:
    none_of(
        [
            f"{relative(path)}:{number}"
            for path in CODE_FILES
            for number, line in enumerate(text_of(path).splitlines(), 1)
            if len(line) > COLUMNS_MAX
        ]
    )


def test_nothing_is_left_over() -> None:
    none_of(
        [
            f"{relative(path)}: {word}"
            for path in FILES
            if path != LICENSE
            for word in LEFTOVERS
            if word in text_of(path)
        ]
    )


def test_no_file_names_a_registry_or_a_path_of_one_machine() -> None:
    found = []
    for path in FILES:
        text = text_of(path)
        found += [f"{relative(path)}: {host}" for host in REGISTRY_HOSTS if host in text]
        found += [f"{relative(path)}: {match.group()}" for match in MACHINE_PATH.finditer(text)]
    none_of(found)


def test_locks_hold_no_address() -> None:
    locks = sorted((ROOT / "requirements").glob("*.txt"))
    assert locks
    none_of([relative(path) for path in locks if "://" in text_of(path)])


def test_suppressions_say_why() -> None:
    none_of(
        [
            f"{relative(path)}:{number}"
            for path in PYTHON_FILES
            if path != Path(__file__)
            for number, line in enumerate(text_of(path).splitlines(), 1)
            if (match := SUPPRESSION.search(line)) and not match["reason"].strip(" #")
        ]
    )


def test_no_error_is_dropped_in_silence() -> None:
    """An except of `pass` alone; contextlib.suppress with a word of comment is how to mean it."""
    found = []
    for path in PACKAGE_FILES:
        for node in ast.walk(ast.parse(text_of(path))):
            if isinstance(node, ast.ExceptHandler) and all(isinstance(line, ast.Pass) for line in node.body):
                found.append(f"{relative(path)}:{node.lineno}")
    none_of(found)


def test_files_open_with_their_contract() -> None:
    """A test file may let its name speak."""
    none_of(
        [
            relative(path)
            for path in PYTHON_FILES
            if not path.name.startswith("test_") and ast.get_docstring(ast.parse(text_of(path))) is None
        ]
    )


def test_each_module_has_a_test_file() -> None:
    missing = []
    for path in PACKAGE_FILES:
        package, *folders = path.relative_to(ROOT).parts[:-1]
        if package not in MIRRORED_PACKAGES or path.name.startswith("__") or relative(path) in WITHOUT_TEST_FILE:
            continue
        test_name = f"test_{path.name}"
        places = [ROOT / "tests" / package / Path(*folders) / test_name, ROOT / "tests" / package / test_name]
        if not any(place.exists() for place in places):
            missing.append(f"{relative(path)}: no {relative(places[0])}, nor a reason in WITHOUT_TEST_FILE")
    none_of(missing)


def test_reasons_for_no_test_file_are_of_modules_that_exist() -> None:
    none_of([name for name in WITHOUT_TEST_FILE if not (ROOT / name).exists()])


@pytest.mark.parametrize("package", PACKAGES)
def test_packages_are_ours_and_not_namesakes(package: str) -> None:
    """The names are common ones, and other distributions install folders of the same name."""
    assert importlib.import_module(package).__file__ == str(ROOT / package / "__init__.py")


def test_protocol_imports_the_standard_library_kio_and_a_checksum_only() -> None:
    allowed = {*sys.stdlib_module_names, "crc32c", "kio", "protocol"}
    found = []
    for path in PACKAGE_FILES:
        if path.relative_to(ROOT).parts[0] != "protocol":
            continue
        for node in ast.walk(ast.parse(text_of(path))):
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            if isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            found += [f"{relative(path)}: {name}" for name in names if name.partition(".")[0] not in allowed]
    none_of(found)


def test_architecture_names_every_file() -> None:
    """In backticks: a whole path, `storage/model.py`, or a folder and then its files' names, `storage/`: `model`."""
    architecture = ROOT / "ARCHITECTURE.md"
    if not architecture.exists():
        pytest.skip("ARCHITECTURE.md is not written yet")
    named, folder = set(), ""
    for token in re.findall(r"`([^`\n]+)`", text_of(architecture)):
        if token.endswith("/"):
            folder = token
        else:
            name = token if token.endswith(".py") else f"{token}.py"
            named |= {name, folder + name}
    wanted = {relative(path) for path in PACKAGE_FILES if path.name != "__init__.py"}
    none_of(sorted(wanted - named), "in the tree, but not in ARCHITECTURE.md's file map:")
    gone = {name for name in named if name.partition("/")[0] in PACKAGES and name not in wanted}
    none_of([name for name in sorted(gone) if f"`{name}`" in text_of(architecture)], "named, but not in the tree:")
