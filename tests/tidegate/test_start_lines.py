"""What the log says at the start: which tier, and no secret."""

from pathlib import Path

from tests.support.config_files import load_lines
from tidegate.start_lines import store_words


def test_a_prefix_is_shown_as_it_is_and_an_endpoint_without_its_user(tmp_path: Path) -> None:
    """Failed before: a prefix like `team:logs@eu/` was taken for a host with a password."""
    config = load_lines(
        tmp_path,
        "rsm.config.key.prefix=team:logs@eu/\n"
        "rsm.config.storage.s3.bucket.name=logs\n"
        "rsm.config.storage.s3.endpoint.url=http://me:secret@store:9000\n",
    )
    words = store_words(config)
    assert words["prefix"] == "team:logs@eu/"
    assert (words["bucket"], words["endpoint"]) == ("logs", "http://[hidden]@store:9000")
