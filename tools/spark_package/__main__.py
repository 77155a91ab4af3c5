"""`python -m tools.spark_package [--with-arrow] [--into DIR]`: the wheel and the zip for Spark, into dist/."""

import argparse
import sys
from pathlib import Path

from tools.spark_package.build import ROOT, build
from tools.spark_package.dependencies import DependencyError
from tools.spark_package.import_mapping import MappingError
from tools.spark_package.our_modules import UnshippableImport


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tools.spark_package", description=__doc__)
    parser.add_argument("--with-arrow", action="store_true", help="bundle pyarrow and numpy too (about 90 MB)")
    parser.add_argument("--into", type=Path, default=ROOT / "dist", metavar="DIR", help="instead of dist/")
    arguments = parser.parse_args()
    try:
        built = build(arguments.into, with_arrow=arguments.with_arrow)
    except (MappingError, UnshippableImport, DependencyError) as error:
        print(f"spark-package: {error}", file=sys.stderr)
        return 1
    for path in (built.wheel, built.zip, built.launcher):
        print(f"{path}  {path.stat().st_size:,} bytes")
    return 0


if __name__ == "__main__":
    sys.exit(main())
