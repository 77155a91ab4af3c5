"""Each fault of the table can be made: its text stands once in its file, and there are tests that should see it."""

from tools.mutants.__main__ import ROOT, mutants


def test_each_fits_the_code() -> None:
    """Failed before: three did not, and nobody noticed."""
    odd = []
    for mutant in mutants():
        path = ROOT / mutant.file
        count = path.read_text(encoding="utf-8").count(mutant.old) if path.is_file() else 0
        if count != 1 or not any(any(ROOT.glob(each)) for each in mutant.tests):
            odd.append(f"{mutant.name}: {count} times in {mutant.file}; {mutant.tests}")
    assert not odd, "\n".join(odd)
