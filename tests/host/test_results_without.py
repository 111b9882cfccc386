"""Results come back the same where one of the libraries is not installed."""

import re
import subprocess
import sys

import pytest

from tools.house import ROOT

# By the package that is not there: what is of use without it.
WITHOUT = {
    "pyarrow": ("pandas", "polars", "science"),
    "pandas": ("polars", "arrow", "science", "texts"),
    "polars": ("pandas", "arrow"),
}
RUN = """
import sys
package, *files = sys.argv[1:]
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
import pytest
sys.exit(pytest.main(["-q", "-p", "no:cacheprovider", "-p", "no:xdist", *files]))
"""


@pytest.mark.parametrize("package", WITHOUT)
def test_results_come_back_without(package: str) -> None:
    files = [f"tests/host/test_results_{each}.py" for each in WITHOUT[package]]
    done = subprocess.run(
        [sys.executable, "-c", RUN, package, *files],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.search(r"^\d\d+ passed", done.stdout.splitlines()[-1]), done.stdout
    assert "skipped" not in done.stdout
