"""`python -m proxy.process.health_check FILE` is `tidegate health FILE` and goes with 0.3."""

import os
import sys
from pathlib import Path

from tidegate.health_check import main

if __name__ == "__main__":
    print("tidegate: python -m proxy.process.health_check goes with 0.3; it is: tidegate health", file=sys.stderr)
    sys.exit(main(Path(sys.argv[1]), os.environ))
