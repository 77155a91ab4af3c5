"""`python -m proxy` is `tidegate`."""

import sys

from proxy.cli import main

if __name__ == "__main__":
    sys.exit(main())
