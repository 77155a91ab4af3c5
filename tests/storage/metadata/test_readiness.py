import threading

from storage.metadata.manager import MetadataReadiness


def test_a_partition_is_caught_up_when_it_was_read_to_the_end_at_assignment() -> None:
    readiness = MetadataReadiness()

    assert not readiness.is_caught_up(3)
    assert not readiness.advance(3, 0, 10)
    assert not readiness.advance(3, 9, 10)
    assert readiness.advance(3, 10, 10)
    assert readiness.is_caught_up(3)
    assert not readiness.is_caught_up(4)


def test_an_empty_partition_is_caught_up_at_once() -> None:
    readiness = MetadataReadiness()

    assert readiness.advance(0, 0, 0)
    assert readiness.is_caught_up(0)


def test_catching_up_is_told_once() -> None:
    readiness = MetadataReadiness()
    readiness.advance(0, 5, 5)

    assert not readiness.advance(0, 6, 5)
    assert readiness.position(0) == 6


def test_a_partition_taken_away_begins_anew() -> None:
    readiness = MetadataReadiness()
    readiness.advance(0, 5, 5)
    readiness.remove(0)

    assert not readiness.is_caught_up(0)
    assert readiness.position(0) == 0
    assert readiness.advance(0, 7, 7)


def test_waiting_ends_when_the_record_was_applied() -> None:
    readiness = MetadataReadiness()
    outcome: list[bool] = []
    waiter = threading.Thread(target=lambda: outcome.append(readiness.wait_until_past(0, 7, timeout_s=10)))
    waiter.start()
    for position in range(1, 9):
        readiness.advance(0, position, 0)
    waiter.join(10)

    assert outcome == [True]


def test_waiting_ends_in_vain_after_its_time_or_by_closing() -> None:
    readiness = MetadataReadiness()
    assert not readiness.wait_until_past(0, 7, timeout_s=0)

    outcome: list[bool] = []
    waiter = threading.Thread(target=lambda: outcome.append(readiness.wait_until_past(0, 7, timeout_s=10)))
    waiter.start()
    readiness.close()
    waiter.join(10)

    assert outcome == [False]
    assert not readiness.is_caught_up(0)
