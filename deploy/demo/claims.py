"""The demonstration's result: counts, shares and claims, pure functions of the topics' records."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from pydantic import BaseModel

from deploy.demo.located import (
    Answered,
    AnsweredClip,
    PlaceReport,
    WhenReport,
    aims,
    place_report,
    when_report,
)
from deploy.demo.plan import DEFAULT_UNSEEN
from detector.records import Label, Verdict
from memory.records import REAL

LEAST_NOT_REAL, LEAST_UNKNOWN, LEAST_NAMED = 0.8, 0.5, 0.8
MOST_FORGOTTEN, MOST_REALS, MOST_REALS_MARKED = 5.0, 0.06, 0.05
_ROUNDS = 1000

Phase = Literal["before", "swap", "after", "again", "place", "when", "hostile"]
"""again: media of `before`, sent once more to the release that the operator approved; place: pictures that
are forged in a part; when: clips, some of them forged in stretches"""

_ASIDE = ("again", "place", "when")
"""What has no part in the shares of the families."""


@dataclass(frozen=True)
class Sent:
    """One message that was sent. id is topic-partition-offset; family is the truth (None: no media)."""

    id: str
    family: str | None
    phase: Phase
    handed_s: float = 0.0
    """when the producer took it, by time.perf_counter()"""


class LabelShares(BaseModel):
    """Of one family's media: the share per label, and the share that was given that very family; n items."""

    n: int
    real: float
    fake: float
    unknown: float
    named: float


class FamilyShares(BaseModel):
    """One family under release 0 and under the release that the operator approved."""

    before: LabelShares
    after: LabelShares


class DemoReport(BaseModel):
    """The demonstration's result. aa and af are in points (0 to 100), shares in 0 to 1.

    af_low, af_high: 95 % over media drawn anew. second_looks_s: what detectors took for their second looks.
    """

    seed: int
    sent: int
    verdicts: int
    dead_letters: int
    lost: int
    duplicated: int
    swap_failed_requests: int
    swap_sent: int
    unseen: str
    families: dict[str, FamilyShares]
    aa_before: float
    aa_after: float
    af: float
    af_low: float
    af_high: float
    reals_unknown: float
    reals_fake: float
    reals: int
    place: PlaceReport
    when: WhenReport
    second_looks_s: float
    seconds: dict[str, float]
    claims: dict[str, bool]
    aims: dict[str, bool]
    """what is strived for and not claimed: too few are counted, or it is not reached yet"""


def delivery(
    sent: Iterable[Sent], verdict_ids: Iterable[str], dead_letter_ids: Iterable[str]
) -> tuple[int, int]:
    """Count the messages without an answer and the answers beyond the first: (lost, duplicated)."""
    answers = Counter(verdict_ids)
    answers.update(dead_letter_ids)
    lost = sum(answers[message.id] == 0 for message in sent)
    return lost, sum(count - 1 for count in answers.values())


def shares(family: str, verdicts: list[Verdict]) -> LabelShares:
    """The shares of one family's verdicts. A real is named when it is called real."""
    n = len(verdicts)
    counts = Counter(verdict.label for verdict in verdicts)
    named = sum(_is_named(family, verdict) for verdict in verdicts)
    of_label = {label: counts[label] / max(n, 1) for label in get_args(Label)}
    return LabelShares(n=n, named=named / max(n, 1), **of_label)


def _is_named(family: str, verdict: Verdict) -> bool:
    if family == REAL:
        return verdict.label == REAL
    return verdict.label == "fake" and verdict.family == family


def family_shares(
    sent: Iterable[Sent], verdicts: Mapping[str, Verdict], first_release: str
) -> dict[str, FamilyShares]:
    """Shares per family, split by the release that spoke: release 0, or any later one.

    What was sent again, or is forged in a part, is not among them, and no clip is.
    """
    parts: dict[str, tuple[list[Verdict], list[Verdict]]] = {}
    for message in sent:
        verdict = verdicts.get(message.id)
        if message.family is None or message.phase in _ASIDE or verdict is None:
            continue
        before, after = parts.setdefault(message.family, ([], []))
        (before if verdict.release == first_release else after).append(verdict)
    return {
        family: FamilyShares(before=shares(family, before), after=shares(family, after))
        for family, (before, after) in sorted(parts.items())
    }


def average_accuracy(families: Mapping[str, FamilyShares], unseen: str) -> tuple[float, float]:
    """AA before and after, in points, with every class (real too) as one task.

    AA is the mean share that was named: before over the classes that release 0 had learned, after over all.
    """
    before = [part.before.named for name, part in families.items() if name != unseen]
    after = [part.after.named for part in families.values()]
    return 100 * sum(before) / max(len(before), 1), 100 * sum(after) / max(len(after), 1)


def average_forgetting(
    sent: Iterable[Sent], verdicts: Mapping[str, Verdict], first_release: str
) -> tuple[float, float, float]:
    """AF and its 95 % interval, in points, over the media that both releases judged; 0 where none is.

    AF follows CDDB's published code: the mean over the old classes (real too) of (share named now - share
    named when learned), so a negative figure is what was forgotten. Two sets of thirty media a class would
    put some three points of chance (one standard deviation) into it, the same media twice far less. The
    interval is a percentile bootstrap (Efron 1979): of each class as many media are drawn anew.
    """
    messages = [message for message in sent if message.family is not None and message.id in verdicts]
    shares = {
        verdicts[message.id].item.digest: verdicts[message.id]
        for message in messages
        if verdicts[message.id].release == first_release
    }
    lost: dict[str, list[int]] = {}
    for message in messages:
        again = verdicts[message.id]
        if message.phase == "again" and message.family and (first := shares.get(again.item.digest)):
            change = _is_named(message.family, again) - _is_named(message.family, first)
            lost.setdefault(message.family, []).append(change)
    if not lost:
        return 0.0, 0.0, 0.0
    rng, drawn = np.random.default_rng(0), np.zeros(_ROUNDS)
    for changes in lost.values():
        drawn += rng.choice(changes, (_ROUNDS, len(changes))).mean(1) / len(lost)
    low, high = np.quantile(drawn, [0.025, 0.975])
    af = float(np.mean([np.mean(changes) for changes in lost.values()]))
    return 100 * af, 100 * float(low), 100 * float(high)


def real_shares(families: Mapping[str, FamilyShares]) -> tuple[int, float, float]:
    """Of all reals, under both releases: (count, share called unknown, share called fake)."""
    parts = (families[REAL].before, families[REAL].after)
    n = sum(part.n for part in parts)
    unknown = sum(part.n * part.unknown for part in parts) / max(n, 1)
    fake = sum(part.n * part.fake for part in parts) / max(n, 1)
    return n, unknown, fake


def _of_default(before: LabelShares) -> dict[str, bool]:
    """Claims of the default choice alone: some other families are missed, which the table shows."""
    return {
        f"before: {LEAST_NOT_REAL:.0%} of the unseen fakes are not called real": 1 - before.real
        >= LEAST_NOT_REAL,
        f"before: {LEAST_UNKNOWN:.0%} of the unseen fakes are called unknown": before.unknown
        >= LEAST_UNKNOWN,
    }


def report(
    seed: int,
    unseen: str,
    seconds: Mapping[str, float],
    sent: list[Sent],
    verdicts: Mapping[str, Verdict],
    answers: tuple[list[str], list[str]],
    first_release: str,
    swap_failed_requests: int,
    forged_in_part: Sequence[Answered],
    clips: Sequence[AnsweredClip],
    second_looks_s: float,
) -> DemoReport:
    """Everything that was counted, and whether each claim holds.

    answers are the ids of all verdicts and of all dead letters, each as often as it came.
    """
    families = family_shares(sent, verdicts, first_release)
    lost, duplicated = delivery(sent, *answers)
    aa_before, aa_after = average_accuracy(families, unseen)
    af, af_low, af_high = average_forgetting(sent, verdicts, first_release)
    reals, reals_unknown, reals_fake = real_shares(families)
    before, after = families[unseen].before, families[unseen].after
    fresh = [m.id for m in sent if m.family == REAL and m.phase not in _ASIDE and m.id in verdicts]
    place = place_report(forged_in_part, [verdicts[name] for name in fresh])
    when = when_report(clips)
    hostile = sum(message.family is None for message in sent)
    swapped = [verdicts[m.id].release for m in sent if m.phase == "swap" and m.id in verdicts]
    return DemoReport(
        seed=seed,
        sent=len(sent),
        verdicts=len(answers[0]),
        dead_letters=len(answers[1]),
        lost=lost,
        duplicated=duplicated,
        swap_failed_requests=swap_failed_requests,
        swap_sent=sum(message.phase == "swap" for message in sent),
        unseen=unseen,
        families=families,
        aa_before=aa_before,
        aa_after=aa_after,
        af=af,
        af_low=af_low,
        af_high=af_high,
        reals_unknown=reals_unknown,
        reals_fake=reals_fake,
        reals=reals,
        place=place,
        when=when,
        second_looks_s=second_looks_s,
        seconds=dict(seconds),
        claims={
            "sent = verdicts + dead letters, 0 lost, 0 twice": lost == duplicated == 0
            and len(sent) == len(answers[0]) + len(answers[1]),
            "every bad file is a dead letter, and nothing else is": len(answers[1]) == hostile,
            "0 requests failed during the swap, and both releases spoke": swap_failed_requests == 0
            and len(set(swapped)) == 2,
            **(_of_default(before) if unseen == DEFAULT_UNSEEN else {}),
            f"after: {LEAST_NAMED:.0%} of the once unseen fakes are named": after.named >= LEAST_NAMED,
            f"after: at most {MOST_FORGOTTEN:.0f} points forgotten": -af <= MOST_FORGOTTEN,
            f"at most {MOST_REALS:.0%} of {reals} reals called unknown": reals_unknown <= MOST_REALS,
            f"at most {MOST_REALS:.0%} of {reals} reals called fake": reals_fake <= MOST_REALS,
            f"at most {MOST_REALS_MARKED:.0%} of {place.reals} reals marked by a map": place.reals_marked
            <= MOST_REALS_MARKED * place.reals,
        },
        aims=aims(when),
    )
