"""The second look at a video that is called real though a stretch of it is told: it is judged by that."""

from collections.abc import Sequence
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
    bounded: bool = False
    most_crops: int = 0

    def looks_at(self, item: JudgedItem) -> bool:
        """Whether an item is judged anew."""
        return item.verdict.label == "real" and bool(item.verdict.segments)

    def plan(self, item: JudgedItem) -> MediaPlan:
        """Return the release's own plan for frames of the stretch. Raises ValueError where none is told."""
        if not item.verdict.segments:
            raise ValueError("no stretch is told")
        first, last = item.verdict.segments[0].frames
        plan = self.artifact.manifest.contract.media_plan
        frames = tuple(first + number for number in sample(last + 1 - first, plan.crops.frames))
        return plan.model_copy(update={"frames": frames})

    def added(self, items: Sequence[JudgedItem], decoded: Sequence[Decoded]) -> list[JudgedItem]:
        """Return a video as its stretch is judged; what the video is, and its stretches, stay."""
        (item,) = items
        output = self.ask(request_for(decoded, self.artifact.manifest.contract))
        before = item.verdict
        origin = Origin(before.id, before.item, before.timings)
        (judged,) = build([origin], decoded, output, self.artifact, suspected=True)
        kept = {name: getattr(before, name) for name in ("width", "height", "scan", "segments", "left_out")}
        (evidence,) = evidence_of(decoded, output)
        return [replace(item, verdict=judged.model_copy(update=kept), evidence=evidence)]
