import json

import drift_replay
import numpy as np
import pytest
from drift_replay import ScoresError, changed, read_statistics, replay_json, unchanged
from verdicts import make_item, make_verdict


def quiet(*_: object) -> None:
    pass


@pytest.fixture
def scored(tmp_path):
    """Writes what `forgewatch score --json` prints of so many files."""

    def write(name, count, shift):
        rng = np.random.default_rng(count)
        lines = []
        for n, (score, energy, distance) in enumerate(rng.normal(size=(count, 3)) + shift):
            parts = None if n % 2 else {"embedding_novelty": float(distance)}
            verdict = make_verdict(
                make_item(n), unknown_score=float(score), energy=float(energy), unknown_parts=parts
            )
            lines.append(json.dumps({"file": f"{n}.jpg", "verdict": verdict.model_dump(mode="json")}))
        path = tmp_path / name
        path.write_text("\n".join(lines) + "\n")
        return path

    return write


@pytest.mark.slow
def test_ones_own_verdicts_raise_no_alarm_and_another_cameras_do_within_100(scored, monkeypatch):
    monkeypatch.setattr(drift_replay, "ITEMS", 300)
    own, other = read_statistics(scored("own", 200, 0.0)), read_statistics(scored("other", 50, 2.0))
    assert np.isnan(own[1::2, 2]).all()
    steady = unchanged(own, 0, quiet)
    assert (steady.pictures, steady.items, steady.alarms, steady.streams) == (200, 300, 0, 5)
    found = list(changed(own, other, 400, 3, 0, quiet))
    assert [(each.share, each.number) for each in found] == [(1.0, 1), (1.0, 2), (0.5, 1), (0.5, 2)]
    assert found[0].within_100 == 1
    assert found[0].median < found[2].median
    same = list(changed(own, own, 400, 3, 0, quiet))
    assert {each.median for each in same} == {float("inf")}
    assert json.loads(replay_json(steady, same))["changed"][0]["median"] is None


@pytest.mark.parametrize("text", ["", "{}\n", "no JSON\n", '{"verdict": {"label": "real"}}\n'])
def test_a_file_that_has_no_verdicts_is_refused_in_one_line(tmp_path, text):
    path = tmp_path / "scores"
    path.write_text(text)
    with pytest.raises(ScoresError, match="what forgewatch score --json print") as refused:
        read_statistics(path)
    assert "\n" not in str(refused.value)
