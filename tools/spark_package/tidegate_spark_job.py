"""What spark-submit runs: `spark-submit --py-files tidegate_spark-….zip tidegate_spark_job.py JOB …`.

spark-submit wants a file of Python; everything else is in the zip, or in the wheel where that is installed.
"""

import importlib
import sys

if __name__ == "__main__":
    sys.exit(importlib.import_module("tidegate.pipeline.jobs.command_line").main())
