"""For all tests."""

import os
import signal

import pytest

# A shell that starts the tests in the background leaves Ctrl-C ignored, in them and in every process that they start. With a
# handler of our own it works here, and the processes that we start get the system's default.
signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """Where everything is said to be there (.ci/run sets COLOCATE_REQUIRE_ALL=1), a skipped test is a failed one: what is
    skipped by mistake shows nothing. Marked gpu or optional, it may want for what no requirements file brings."""
    report = yield
    excused = any(item.get_closest_marker(name) for name in ("gpu", "optional"))
    required = os.environ.get("COLOCATE_REQUIRE_ALL") == "1" and not excused
    if required and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"COLOCATE_REQUIRE_ALL=1, and this test was skipped: {report.longrepr[-1]}"
    return report
