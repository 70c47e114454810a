"""Six cases of the campaign of kills, drawn anew each time; CAMPAIGN=96 tries all."""

import os
import random

import pytest

from tests.kill_campaign import CASES, campaign

NUM_CASES = int(os.environ.get("CAMPAIGN", "6"))


@pytest.mark.slow
@pytest.mark.timeout(300 * NUM_CASES)
def test_some_cases_of_the_campaign():
    """Broken by: no metrics.csv in the cloud; a step of its own in the checkpoint."""
    cases = random.sample(CASES, NUM_CASES)
    assert "lost" not in campaign(cases).values(), cases
