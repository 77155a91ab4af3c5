"""What an error amounts to, when it comes alone and when it comes in groups."""

from metrics.meters import CloseCause
from protocol.client.errors import TransportError
from protocol.wire.errors import PeerProtocolError
from proxy.connection.frame_stream import ConnectionEnd, end_of

END = ConnectionEnd(CloseCause.LIMIT, "too much")


def group(*errors: Exception) -> ExceptionGroup[Exception]:
    return ExceptionGroup("loop", list(errors))


def test_an_end_is_itself_however_deep_it_lies() -> None:
    assert end_of(group(group(group(END))), CloseCause.CLIENT) is END


def test_a_failed_send_is_the_receivers_doing() -> None:
    for destination in (CloseCause.CLIENT, CloseCause.UPSTREAM):
        end = end_of(group(TransportError("reset")), destination)
        assert (end.cause, end.detail, end.fault) == (destination, "reset", None)


def test_a_peers_error_is_a_malformed_frame() -> None:
    end = end_of(group(PeerProtocolError("length -1")), CloseCause.CLIENT)

    assert (end.cause, end.detail, end.fault) == (CloseCause.MALFORMED_FRAME, "length -1", None)


def test_a_fault_of_ours_wins_over_what_came_with_it() -> None:
    bug = ZeroDivisionError("bug")

    end = end_of(group(TransportError("reset"), group(bug)), CloseCause.CLIENT)

    assert end.cause is CloseCause.FAULT
    assert end.fault is bug
    assert "bug" in end.detail


def test_without_a_detail_the_cause_speaks() -> None:
    assert str(ConnectionEnd(CloseCause.DRAIN)) == "drain"
