"""What both releases said of a shared item, and whose word goes out. Pure."""

from dataclasses import dataclass, replace

from detector.batch import Judged, Opened
from detector.records import Comparison, ReleaseVerdict
from detector.serving.rollout import Route
from ingest.dead_letters import printable


@dataclass(frozen=True)
class SkippedItem:
    """An item that the challenger need not answer, and why, in a few words."""

    why: str


Challenged = Judged | SkippedItem | str
"""What the challenger made of an item, or in one line why it said nothing."""

_SCORES = ("fake_probability", "energy", "unknown_score")


def attach_comparison(champion: Judged, opened: Opened, challenger: Challenged, route: Route) -> Judged:
    """Return what goes out for a shared item, with the comparison; the champion's where that cannot be.

    Media that cannot be opened or decoded says nothing of a release: it is not compared.
    """
    item = opened.media.item
    if item is None or route.challenger is None or champion.stage in ("envelope", "decode"):
        return champion
    others = _release_verdict(challenger, route.challenger)
    answers = (
        isinstance(challenger, Judged) and others.error is None and route.canary_answers(champion.record.id)
    )
    comparison = Comparison(
        rollout=route.trial,
        id=champion.record.id,
        source=item.source,
        digest=item.digest,
        champion=_release_verdict(champion, route.stable.digest),
        challenger=others,
        answered="challenger" if answers else "champion",
        left_out=challenger.why if isinstance(challenger, SkippedItem) else None,
    )
    word = challenger if answers and isinstance(challenger, Judged) else champion
    return replace(word, comparison=comparison)


def _release_verdict(judged: Challenged, release: str) -> ReleaseVerdict:
    if isinstance(judged, SkippedItem):
        return ReleaseVerdict(release=release)
    if isinstance(judged, str):
        return ReleaseVerdict(release=release, error=printable(judged))
    verdict = judged.verdict
    if verdict is None:
        assert judged.error is not None
        return ReleaseVerdict(release=release, error=printable(judged.error))
    scores = {name: getattr(verdict, name) for name in _SCORES}
    return ReleaseVerdict(
        release=release, label=verdict.label, family=verdict.family, model_s=verdict.timings.model_s, **scores
    )
