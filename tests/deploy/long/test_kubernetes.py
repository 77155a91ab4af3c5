"""Every combination of the Helm chart's values; a few of them are in tests/deploy/test_kubernetes.py."""

from pathlib import Path

import pytest

from tests.deploy.test_kubernetes import check_combinations, combinations


@pytest.mark.needs("helm", "kubeconform")
def test_every_combination_conforms_and_is_loaded(tmp_path: Path) -> None:
    check_combinations(list(combinations()), tmp_path)
