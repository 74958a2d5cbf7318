"""The evidence on a candidate: the bytes that lie in the store of artifacts.

The updater says that its gates hold. Deploy believes the evaluation's bytes alone, whose digest an approval
binds, and computes every gate from them.
"""

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

from pydantic import ValidationError

from deploy.release_records import Release
from updater.candidate.gates import make_gates
from updater.candidate.report import figures
from updater.evaluation_parts import Measure
from updater.gate_records import Gate
from updater.records import Candidate, Evaluation
from updater.settings import UpdaterSettings


class EvidenceError(Exception):
    """The stored bytes do not bear the candidate out; fatal for the request, nothing was written."""


@dataclass(frozen=True)
class Evidence:
    """The evidence in the artifact store now. Digests are SHA-256, hexadecimal."""

    digest: str
    evaluation_digest: str
    parent: str | None
    """Of the manifest: digest of the release that it was trained from."""
    classes: tuple[str, ...]
    """Of the manifest, by logit."""
    evaluation: bytes
    """Of evaluation.json."""
    snapshot: str | None
    """Digest of the training snapshot; None where the artifact has none."""
    purged: Callable[[], int] = lambda: 0
    """Counts the items of that snapshot which left the memory since by a purge."""


def require_same_bytes(evidence: Evidence, digest: str, evaluation_digest: str) -> None:
    """Raise EvidenceError where the stored bytes are not those of these two digests."""
    if evidence.digest != digest:
        raise EvidenceError(f"the stored artifact's bytes give {evidence.digest}, not {digest}")
    if evidence.evaluation_digest != evaluation_digest:
        raise EvidenceError(
            f"the stored evaluation's bytes give {evidence.evaluation_digest}, not {evaluation_digest}"
        )


def require_servable(evidence: Evidence, digest: str, evaluation_digest: str) -> None:
    """Ask what each way to live asks: proposal, approval, promotion, each step, going on, coming back.

    Raises EvidenceError where the stored bytes are others, or items that it was made of were purged since.
    """
    require_same_bytes(evidence, digest, evaluation_digest)
    if purged := evidence.purged():
        raise EvidenceError(
            f"release {digest[:12]} was made of {purged} items that were purged since: ask for a new"
            " update (`forgewatch update`)"
        )


def require_gates(
    candidate: Candidate, evidence: Evidence, live: Release | None, bounds: UpdaterSettings
) -> None:
    """Raise EvidenceError unless the bytes are the candidate's and its gates are those that follow from them.

    A gate that does not hold is a finding, for a person to decide on. live is the candidate's parent, or None
    where nothing is live. bounds are the gates' by deploy's own environment.
    """
    require_servable(evidence, candidate.digest, candidate.evaluation_digest)
    if not candidate.gates:
        raise EvidenceError("it comes without gates, so nothing says that it may go live")
    computed = _compute_gates(candidate, evidence, live, bounds)
    if candidate.gates != computed:
        raise EvidenceError(_difference(candidate.gates, computed))


def _compute_gates(
    candidate: Candidate, evidence: Evidence, live: Release | None, bounds: UpdaterSettings
) -> tuple[Gate, ...]:
    try:
        evaluation = Evaluation.model_validate_json(evidence.evaluation)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(str(part) for part in first["loc"])
        raise EvidenceError(f"evaluation.json is no evaluation: {where or 'it'}: {first['msg']}") from error
    for where, parent, classes in (
        ("manifest", evidence.parent, evidence.classes),
        ("evaluation", evaluation.parent, evaluation.classes),
    ):
        if (parent, classes) != (candidate.parent, candidate.classes):
            raise EvidenceError(f"its {where} names another parent or other classes than the proposal")
    known = live.candidate.classes if live else ()
    if lost := [name for name in known if name not in candidate.classes]:
        raise EvidenceError(f"the live release knows {', '.join(lost)}, which it does not know")
    new = tuple(name for name in candidate.classes[1:] if name not in known)
    if set(evaluation.new) != set(new):
        raise EvidenceError("its evaluation takes other classes for new than those that are")
    if (evaluation.before is None) != (live is None):
        raise EvidenceError("its evaluation does not compare it with the live release")
    try:
        return make_gates(bounds, evaluation)
    except KeyError as error:
        raise EvidenceError(f"its evaluation did not measure {error}") from error
    except ValueError as error:
        raise EvidenceError(f"its gates cannot be computed: {error}") from error


def _difference(proposed: tuple[Gate, ...], computed: tuple[Gate, ...]) -> str:
    ours = {gate.name: gate for gate in computed}
    for gate in proposed:
        here = ours.pop(gate.name, None)
        if here is None:
            return f"the gate {gate.name!r} does not follow from its evaluation"
        if here.bound != gate.bound:
            return (
                f"the gate {gate.name!r} has the bound {gate.bound:g} in the updater and {here.bound:g} "
                "here: give both processes the same FORGEWATCH_UPDATER_ settings of the gates"
            )
        if here != gate:
            theirs, gives = (f"{side.format('g')}, {side.state}" for side in (gate, here))
            other = " (in the words of an updater of another version)" if theirs == gives else ""
            return f"the gate {gate.name!r} says {theirs}, its evaluation gives {gives}{other}"
    return f"the gate {next(iter(ours), '')!r} is missing from the proposal, or the order is another"


_KEPT, _KEPT_FIGURES = 64, 10_000
"""evaluations that are kept parsed, some 100 kB each, and figures, some 1 kB"""


class Evaluations:
    """Reads evaluations. A digest's bytes never change, so the last ones are kept."""

    def __init__(self, stored: Callable[[str], bytes]) -> None:
        """stored: gives the bytes of a release's evaluation.json, by the release's digest."""
        self._stored = stored
        self._read = lru_cache(_KEPT)(self._read_anew)
        self._figures = lru_cache(_KEPT_FIGURES)(lambda *digests: figures(self._read(*digests)))

    def of(self, release: Release) -> Evaluation:
        """Return a release's evaluation.

        Raises EvidenceError where it is not the one that was proposed, and what `stored` raises.
        """
        return self._read(release.digest, release.candidate.evaluation_digest)

    def figures_of(self, release: Release) -> Mapping[Measure, float]:
        """Return a release's figures. Raises the errors of `of`."""
        return self._figures(release.digest, release.candidate.evaluation_digest)

    def _read_anew(self, digest: str, evaluation_digest: str) -> Evaluation:
        data = self._stored(digest)
        if hashlib.sha256(data).hexdigest() != evaluation_digest:
            raise EvidenceError(f"the stored evaluation of {digest} is not the one that was proposed")
        try:
            return Evaluation.model_validate_json(data)
        except ValidationError as error:
            raise EvidenceError(f"the evaluation of {digest} is none: {error.errors()[0]['msg']}") from error
