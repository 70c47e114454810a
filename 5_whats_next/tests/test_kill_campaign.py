"""Some cases of the campaign: killed in the middle, and back on the same curve to the bit."""

import os

import pytest
from campaign_runs import BITS, IN_BOTH, NOTHING_YET, Campaign, Case, server
from kill_campaign import STEPS, cases, table

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def campaign(tmp_path_factory):
    folder = tmp_path_factory.mktemp("campaign")
    with pytest.MonkeyPatch.context() as monkeypatch:
        for name in ("ENDPOINT_URL", "ACCESS_KEY_ID", "SECRET_ACCESS_KEY"):
            monkeypatch.setenv(f"AWS_{name}", "")  # set by the server; here only to be put back
        with server(folder) as endpoint:
            yield Campaign(folder / "runs", endpoint)


CASES = [Case("upload", 8, ranks=2), Case("validation", 6, fault=IN_BOTH)]
if os.environ.get("FULL_MATRIX"):  # and kill_campaign.py has them all
    CASES += [Case("step", 8, workers=2), Case("upload", 6, fault="503")]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_comes_back_to_the_same_bits(campaign, case):
    results = campaign.run(case).results
    assert results["disk"] == "same", results
    assert results["cloud"] == "same", results
    assert int(results["lost"].split()[0]) == 0, results  # a checkpoint after each step


def test_everything_is_in_the_full_form():
    found = cases(short=False)
    killed = {(c.step, c.ranks, c.workers) for c in found if c.moment == "step" and not c.fault}
    assert killed == {(s, r, w) for s in range(STEPS) for r in (1, 2) for w in (0, 2)}
    faults = {"503", "resets", "hang", "outage", "latency", "tmpdir"} | set(BITS)
    assert {c.fault for c in found} - {""} == faults


def test_a_run_that_left_the_curve_is_named():
    good, bad = Case("step", 1), Case("step", 2)
    good.results = {"lost": "0 1", "disk": "same", "cloud": "same"}
    bad.results = {"lost": "0 0", "disk": "same", "cloud": "DIFFERENT"}
    text, is_good = table([good, bad])
    assert not is_good
    assert "NOT the reference curve: step-2-1-0-none" in text
    assert table([good])[1]


def test_a_cloud_without_a_copy_is_not_passed_over():
    """Before anything was uploaded it is named; later it is a failure."""
    results = {"lost": "0 1", "disk": "same", "cloud": NOTHING_YET}
    early, late = Case("step", 0, results=results), Case("step", 6, results=results)
    text, is_good = table([early])
    assert is_good
    assert "killed before the first upload, so nothing is in the cloud: step 0" in text
    assert not table([late])[1]


def test_a_wrong_name_is_one_line(monkeypatch):
    import kill_campaign

    monkeypatch.setattr("sys.argv", ["kill_campaign.py", "--only", "earthquake"])
    with pytest.raises(SystemExit, match=r"error: --only: earthquake is unknown; allowed: .*503"):
        kill_campaign.main()
