"""A skipped test is a failed one where everything is required (tests/conftest.py)."""

import os
import subprocess
import sys

import pytest

from launch.recipe import ROOT

SKIPPED = """
import pytest

def test_that_skips_itself():
    pytest.skip("no such program")

@pytest.mark.skip(reason="never")
def test_that_is_skipped():
    pass

@pytest.mark.optional
def test_that_may_be_skipped():
    pytest.skip("no such package")

@pytest.mark.gpu
def test_that_needs_a_gpu():
    pytest.skip("no GPU")

@pytest.mark.xfail
def test_that_is_known_to_fail():
    assert False
"""


@pytest.mark.parametrize(
    ("required", "outcome"), [("1", "1 failed, 2 skipped, 1 xfailed, 1 error"), ("", "4 skipped, 1 xfailed")]
)
def test_what_is_skipped_without_leave_fails_where_everything_is_required(tmp_path, required, outcome):
    (tmp_path / "test_skipped.py").write_text(SKIPPED)
    command = [sys.executable, "-m", "pytest", "-q", "-c", "pyproject.toml", "-p", "tests.conftest", str(tmp_path)]
    variables = os.environ | {"COLOCATE_REQUIRE_ALL": required}
    done = subprocess.run(command, cwd=ROOT, env=variables, capture_output=True, text=True, check=False)
    assert outcome in done.stdout, done.stdout
    assert ("no such program" in done.stdout) == bool(required), "the reason is told"
