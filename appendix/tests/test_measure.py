"""Records that are measured again, and those that another program makes."""

import json
import sys

import measure


def test_again_leaves_what_another_program_makes(monkeypatch, tmp_path, capsys):
    results = tmp_path / "0_first" / "results"
    results.mkdir(parents=True)
    (results / "own.json").write_text(json.dumps({"command": "python own.py"}))
    foreign = {"command": "python other.py", "made_by": "appendix/other.py"}
    (results / "foreign.json").write_text(json.dumps(foreign))
    measured = []
    monkeypatch.setattr(measure, "ROOT", tmp_path)
    monkeypatch.setattr(measure, "measure", lambda *given: measured.append(given[1:]))
    monkeypatch.setattr(sys, "argv", ["measure.py", "0_first", "--again"])
    assert measure.main() == 0
    assert measured == [("own", "python own.py")]
    assert "foreign: left as it is; appendix/other.py makes it" in capsys.readouterr().out
