"""Comparisons as the detector writes them."""

from datetime import UTC, datetime

import pytest

from deploy.rollout_records import Plan, Trial
from detector.records import Comparison, ReleaseVerdict

CHAMPION, CHALLENGER = "a" * 64, "b" * 64
BEGAN = datetime(2026, 11, 24, 12, tzinfo=UTC)


def said(release, what, sure=0.95, model_s=0.1):
    if what == "error":
        return ReleaseVerdict(release=release, error="it does not answer", model_s=model_s)
    label = what if what in ("real", "unknown") else "fake"
    family = what if label == "fake" else None
    return ReleaseVerdict(
        release=release,
        label=label,
        family=family,
        fake_probability=sure if family else 0.1,
        energy=-1.0,
        unknown_score=0.0,
        model_s=model_s,
    )


@pytest.fixture
def compared():
    """Makes a comparison: the item's number, what both said, its source, and fields of the two."""

    def make(number, champion, challenger, source="camera", answered="champion", rollout=0, **by):
        return Comparison.model_validate(
            {
                "id": f"forgewatch.media-0-{number}",
                "source": source,
                "digest": "0" * 64,
                "rollout": rollout,
                "champion": said(CHAMPION, champion, by.get("sure", 0.95), by.get("champion_s", 0.1)),
                "challenger": said(CHALLENGER, challenger, 0.95, by.get("challenger_s", 0.1)),
                "answered": answered,
                "declared": by.get("declared", False),
            }
        )

    return make


@pytest.fixture
def trial():
    """A rollout that began at noon, in shadow."""
    return Trial(release=CHALLENGER, champion=CHAMPION, plan=Plan(), began=BEGAN, since=BEGAN)
