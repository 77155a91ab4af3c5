"""`tidegate_spark` is the old name of `tidegate.spark`, until version 0.3."""

import warnings

from pipeline.data_source import TidegateDataSource
from tidegate.spark import commit_offsets, register

__all__ = ["TidegateDataSource", "commit_offsets", "register"]

# A kind that is shown to all, and not only to who tests with warnings on.
warnings.warn("tidegate_spark is tidegate.spark now: this name goes with 0.3", FutureWarning, stacklevel=2)
