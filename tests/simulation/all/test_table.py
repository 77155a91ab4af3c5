"""The whole table by all seeds, but for the rows that take minutes."""

from tests.simulation.cases import Case
from tests.simulation.rows import check_row, rows_of


@rows_of("all")
def test_all_is_read_no_slower_than_before(case: Case, link: str) -> None:
    check_row(case, link)
