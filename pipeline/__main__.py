"""What spark-submit runs; and `python -m pipeline JOB …`, which is `tidegate spark JOB …` and goes with 0.3."""

import sys

from pipeline.jobs.command_line import main

if __name__ == "__main__":
    print("tidegate: python -m pipeline goes with 0.3; it is: tidegate spark", file=sys.stderr)
    sys.exit(main())
