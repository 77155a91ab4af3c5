"""`python -m proxy.process.health_check FILE` becomes `tidegate health FILE`; the old way goes with 0.3."""

import os
import sys

if __name__ == "__main__":
    print("tidegate: python -m proxy.process.health_check goes with 0.3; it is: tidegate health", file=sys.stderr)
    sys.stderr.flush()
    os.execv(sys.executable, [sys.executable, "-m", "tidegate", "health", *sys.argv[1:]])  # no shell
