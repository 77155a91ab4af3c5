"""The page: two formats, and no header of a stranger that breaks it."""

from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from metrics.meters import Meters
from metrics.page import render


def test_plain_text_is_the_default_and_parses(meters: Meters) -> None:
    meters.tier.on_remote_fetch('a"\n\\b', 5)
    content_type, page = render(meters.registry)
    assert content_type.startswith("text/plain; version=0.0.4")
    values = {s.name: (s.labels, s.value) for family in parse_text(page.decode()) for s in family.samples}
    assert values["kafka_server_brokertopicmetrics_remotefetchbytes_total"] == ({"topic": 'a"\n\\b'}, 5)


def test_openmetrics_is_given_to_those_who_ask_and_parses(meters: Meters) -> None:
    meters.tier.on_remote_fetch_ended(0.01)
    content_type, page = render(meters.registry, "application/openmetrics-text;version=1.0.0,text/plain;q=0.5")
    assert content_type.startswith("application/openmetrics-text; version=1.0.0")
    assert page.endswith(b"# EOF\n")
    families = list(parse_openmetrics(page.decode()))  # type: ignore[no-untyped-call]  # the library leaves it untyped
    assert len(families) == len(list(meters.registry.collect()))
