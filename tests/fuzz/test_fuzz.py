"""Decoders under bytes that coverage leads: 5 s each, and what once crashed one, again."""

from pathlib import Path

import pytest

from tests.fuzz.__main__ import CRASHERS, fuzz
from tests.fuzz.seeds import SEEDS
from tests.fuzz.targets import TARGETS
from tests.support.cases import case

SECONDS = 5


@pytest.mark.needs("atheris")
@pytest.mark.parametrize("name", sorted(TARGETS))
def test_no_bytes_crash_a_decoder(name: str, tmp_path: Path) -> None:
    done = fuzz(name, SECONDS, tmp_path / "corpus", tmp_path / "crashers")
    assert done.returncode == 0, done.stdout[-4000:]
    assert not [*(tmp_path / "crashers").iterdir()]


def test_every_decoder_has_seeds_that_do_not_crash_it() -> None:
    assert SEEDS.keys() == TARGETS.keys()
    for name, target in TARGETS.items():
        seeds = [*SEEDS[name]()]
        assert seeds
        for number, seed in enumerate(seeds):
            with case(name, number):
                target(seed)


def test_what_once_crashed_a_decoder_does_not_again() -> None:
    for path in sorted(CRASHERS.glob("*-*")):
        with case(path.name):
            TARGETS[path.name.split("-")[0]](path.read_bytes())
