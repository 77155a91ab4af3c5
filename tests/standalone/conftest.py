"""What several files here begin with."""

from tests.support.program_fixtures import kafka, restored_logging

__all__ = ["kafka", "restored_logging"]
