"""Tidegate as Spark's clusters have it: `tidegate.spark`, and what that needs.

Libraries that the zip for `--py-files` brings stand at the end of sys.path: see `tidegate._bundled`.
"""

from tools.spark_package.shipped._bundled import make_importable

make_importable()
