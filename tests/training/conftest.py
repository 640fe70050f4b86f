"""For the tests of real runs."""

import pytest

from tests.real_runs import CASES, SHORT, launch


@pytest.fixture(scope="session")
def outcomes(tmp_path_factory):
    """Each case is run once, when a test first asks for it."""
    done = {}

    def outcome(case: str):
        if case not in done:
            recipe, overrides = CASES[case.removesuffix(" again")]
            done[case] = launch(recipe, tmp_path_factory.mktemp("runs"), [*SHORT, *overrides], WANDB_API_KEY="")
        return done[case]

    return outcome
