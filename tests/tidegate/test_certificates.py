"""Certificates in use: which they are, until when, and when somebody should do something."""

import datetime
from pathlib import Path

import pytest
import structlog

from metrics.meters import Meters
from metrics.registry import Registry
from tests.support.certificates import server_certificate
from tests.support.config_files import load_lines
from tidegate.certificate_dates import CertificateWatch, certificates_in_use, expires_at_s, shown_date

pytestmark = pytest.mark.autojump

KEY = "proxy.tls.certificate.file"
DAY_S = 86_400.0


@pytest.fixture
def chain(tmp_path: Path) -> bytes:
    return server_certificate(tmp_path)[0].read_bytes()


class Watched:
    """A watch with a clock that the test turns."""

    def __init__(self, now_s: float) -> None:
        self.now_s = now_s
        self.registry = Registry()
        self.watch = CertificateWatch(Meters(self.registry).tls, lambda: self.now_s)

    def told(self, chain: bytes) -> list[str]:
        with structlog.testing.capture_logs() as logs:
            self.watch.tell({KEY: chain})
        return [str(entry["event"]) for entry in logs]

    @property
    def gauge(self) -> float | None:
        return self.registry.sample_value("tidegate_certificate_expiry_timestamp_seconds", {"key": KEY})


def test_the_gauge_has_the_end_of_the_first_to_expire(tmp_path: Path, chain: bytes) -> None:
    end = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC) + datetime.timedelta(days=365 * 100)
    assert expires_at_s(chain) == end.timestamp()
    assert shown_date(expires_at_s(chain)) == "2119-12-08T00:00:00Z"
    watched = Watched(now_s=0)
    assert watched.told(chain) == []
    assert watched.gauge == end.timestamp()


def test_below_thirty_days_it_is_said_once_a_day(chain: bytes) -> None:
    watched = Watched(now_s=expires_at_s(chain) - 30 * DAY_S)
    assert watched.told(chain) == []
    watched.now_s += 1
    assert watched.told(chain) == ["certificate_expires_soon"]
    watched.now_s += DAY_S - 1
    assert watched.told(chain) == []
    watched.now_s += 1
    assert watched.told(chain) == ["certificate_expires_soon"]
    watched.now_s = expires_at_s(chain)
    assert watched.told(chain) == ["certificate_expired"]


def test_each_certificate_that_is_presented_is_named_by_its_key(tmp_path: Path) -> None:
    for name in ("clients", "upstream", "metadata"):
        (tmp_path / name).mkdir()
        certificate, key = server_certificate(tmp_path / name)
        (tmp_path / f"{name}.pem").write_bytes(certificate.read_bytes() + key.read_bytes())
    config = load_lines(
        tmp_path,
        "proxy.tls.certificate.file=clients.pem\n"
        "upstream.security.protocol=SSL\nupstream.ssl.certificate.location=upstream.pem\n"
        "rlmm.config.remote.log.metadata.consumer.ssl.keystore.location=metadata.pem\n",
    )
    assert certificates_in_use(config, config.proxy.tls) == {
        KEY: (tmp_path / "clients" / "server.pem").read_bytes(),
        "upstream.ssl.certificate.location": (tmp_path / "upstream" / "server.pem").read_bytes(),
        "rlmm.config.remote.log.metadata.consumer.ssl.keystore.location": (
            tmp_path / "metadata" / "server.pem"
        ).read_bytes(),
    }
