"""The rows of the table that take minutes."""

from tests.simulation.cases import Case
from tests.simulation.rows import check_row, rows_of


@rows_of("long")
def test_all_is_read_no_slower_than_before(case: Case, link: str) -> None:
    check_row(case, link)
