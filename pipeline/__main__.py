"""`python -m pipeline JOB …`, and what spark-submit is given."""

import sys

from pipeline.jobs.command_line import main

if __name__ == "__main__":
    sys.exit(main())
