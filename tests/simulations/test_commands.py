"""The commands of simulate.py."""

import json

import numpy as np
import pytest
from simulate import app
from typer.testing import CliRunner, Result
from verdicts import make_item, make_verdict


def run(*words: object) -> Result:
    return CliRunner().invoke(app, [str(word) for word in words])


@pytest.mark.slow
def test_the_memorys_index_is_measured_and_the_figures_are_written(tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")
    assert "recall@10" in run("memory", "--items", "200", "--report", tmp_path / "found.json").output
    sizes = json.loads((tmp_path / "found.json").read_text())["sizes"]
    assert [(size["items"], size["kind"]) for size in sizes] == [(200, "clustered"), (200, "spread")]
    assert all(size["recall"] > 0.99 for size in sizes)  # of vectors in fp16


def test_drift_is_measured_on_ones_own_scores_and_a_file_that_has_none_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr("drift_replay.ITEMS", 150)
    rng = np.random.default_rng(0)
    for name, deviations in (("own", 0.0), ("other", 3.0)):
        verdicts = (
            make_verdict(make_item(n), unknown_score=float(score), energy=float(score))
            for n, score in enumerate(rng.normal(size=100) + deviations)
        )
        lines = (json.dumps({"verdict": verdict.model_dump(mode="json")}) for verdict in verdicts)
        (tmp_path / name).write_text("\n".join(lines))
    words = ["shift", "--before", "200", "--streams", "1", "--report", tmp_path / "found"]
    ended = run(*words, "--scores", tmp_path / "own", "--other", tmp_path / "other")
    assert "100 verdicts of your own" in ended.output
    found = json.loads((tmp_path / "found").read_text())
    assert found["unchanged"]["alarms"] == 0
    assert [each["within_100"] for each in found["changed"]] == [1, 1, 1, 1]
    assert "what forgewatch score --json prints" in str(run(*words, "--scores", tmp_path / "found").exception)
