"""What every test below gets: log lines as nobody has configured them."""

from tests.support.unconfigured_logs import unconfigured_logs as unconfigured_logs
