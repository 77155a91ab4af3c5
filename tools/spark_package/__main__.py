"""`python -m tools.spark_package [--with-arrow] [--with-gcs] [--with-azure]`: the wheel and the zip for Spark."""

import argparse
import sys
from pathlib import Path

from tools.distribution.import_mapping import MappingError
from tools.spark_package.build import ROOT, build
from tools.spark_package.dependencies import STORES, DependencyError
from tools.spark_package.our_modules import UnshippableImport


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.spark_package", description=__doc__)
    parser.add_argument("--with-arrow", action="store_true", help="bundle pyarrow and numpy too (about 90 MB)")
    for store in STORES:
        parser.add_argument(f"--with-{store}", action="append_const", dest="stores", const=store, help="and its client")
    parser.add_argument("--into", type=Path, default=ROOT / "dist", metavar="DIR", help="instead of dist/")
    arguments = parser.parse_args()
    try:
        built = build(arguments.into, with_arrow=arguments.with_arrow, stores=arguments.stores or ())
    except (MappingError, UnshippableImport, DependencyError) as error:
        print(f"spark-package: {error}", file=sys.stderr)
        return 1
    for path in (built.wheel, built.zip, built.launcher):
        print(f"{path}  {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
