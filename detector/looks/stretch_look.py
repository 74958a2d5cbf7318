"""The second look at a video that is called real though a stretch of it is told: it is judged by that."""

from dataclasses import dataclass, replace

from detector.looks.judged_item import Ask, JudgedItem, evidence_of
from detector.release.artifact import Artifact
from detector.release.inputs import request_for
from detector.verdicts import Origin, build
from ingest.records import Decoded, MediaPlan
from ingest.sandbox.decode import sample


@dataclass(frozen=True)
class StretchLook:
    """Judges a video anew, by the surest of its stretches as if there were nothing else.

    Few of the frames that the first look sampled lie in a short stretch, so their mean says little of it. The
    video is called what its stretch is called, and unknown where that would be real: scanner and gate do not
    agree, so a person has to look. The evidence, which such a person sees, is the stretch then.
    """

    artifact: Artifact
    ask: Ask
    adds: str = "stretch"

    def looks_at(self, one: JudgedItem) -> bool:
        """Whether an item is judged anew."""
        return one.verdict.label == "real" and bool(one.verdict.segments)

    def plan(self, one: JudgedItem) -> MediaPlan:
        """Return the release's own plan for frames of the stretch. Raises ValueError where none is told."""
        if not one.verdict.segments:
            raise ValueError("no stretch is told")
        first, last = one.verdict.segments[0].frames
        plan = self.artifact.manifest.contract.media_plan
        frames = tuple(first + number for number in sample(last + 1 - first, plan.crops.frames))
        return plan.model_copy(update={"frames": frames})

    def added(self, one: JudgedItem, decoded: Decoded) -> JudgedItem:
        """Return the item as its stretch is judged; what the video is, and its stretches, stay."""
        output = self.ask(request_for([decoded], self.artifact.manifest.contract))
        before = one.verdict
        origin = Origin(before.id, before.item, before.timings)
        (judged,) = build([origin], [decoded], output, self.artifact, suspected=True)
        kept = {name: getattr(before, name) for name in ("width", "height", "scan", "segments")}
        (evidence,) = evidence_of([decoded], output)
        return replace(one, verdict=judged.model_copy(update=kept), evidence=evidence)
