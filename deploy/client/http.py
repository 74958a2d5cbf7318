"""The deploy server's API, as Python calls; what the command line is made of."""

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any, Self
from urllib.parse import quote

import httpx
from pydantic import BaseModel

from deploy.access.roles import TokenEntry, TokenMade, TokenRequest
from deploy.client.connection import Connection, ServerRefusedError
from deploy.label_studio_records import LabelStudioProject
from deploy.lineage.records import (
    ExemplarLineage,
    LabelLineage,
    ReleaseLineage,
    SourceLineage,
    VerdictLineage,
)
from deploy.notice_records import WebhookState
from deploy.records import (
    AccuracyReport,
    ClusterDetail,
    LabelDone,
    LabelRequest,
    PurgeDone,
    PurgePreview,
    PurgeRequest,
    RecordEntry,
    RecordHead,
    Status,
)
from deploy.release_records import LedgerEntry, Release, ReleaseDetail
from deploy.rollout_records import Disagreement, RetractionView, RolloutView
from deploy.settings import DeploySettings
from detector.records import Rollout
from detector.release.artifact import SIGNATURE
from memory.estimate.records import AuditDone, AuditItem
from memory.records import (
    AnnotationsTaken,
    BlockedEntry,
    Clustering,
    ClusterSummary,
    Exemplar,
    ImportDone,
    LabelEntry,
)
from updater.records import Outlook, UpdateRun


class AccuracyCalls:
    """Calls about accuracy. Every method raises ServerUnavailableError and ServerRefusedError."""

    def __init__(self, connection: Connection) -> None:
        self._answer = connection.answer

    def report(self, days: int, release: str | None = None) -> AccuracyReport:
        """How accurate the verdicts of a release, or the live one, were in the last days."""
        params = {"days": str(days)} | ({} if release is None else {"release": release})
        return self._answer(AccuracyReport, "GET", "/accuracy", params=params)

    def waiting(self) -> list[AuditItem]:
        """The drawn verdicts that wait for a label, the oldest first."""
        return self._answer(list[AuditItem], "GET", "/audits")

    def audit(self, item: str, label: str) -> AuditDone:
        return self._answer(AuditDone, "POST", "/audits", {"id": item, "label": label})


class NoticeCalls:
    """Calls about webhooks. Every method raises ServerUnavailableError and ServerRefusedError."""

    def __init__(self, connection: Connection) -> None:
        self._ask, self._answer = connection.ask, connection.answer

    def webhooks(self) -> list[WebhookState]:
        return self._answer(list[WebhookState], "GET", "/notices")

    def test(self) -> None:
        self._ask("POST", "/notices/test")


class RolloutCalls:
    """Calls about the rollout. Every method raises ServerUnavailableError and ServerRefusedError."""

    def __init__(self, connection: Connection) -> None:
        self._answer = connection.answer

    def view(self) -> RolloutView:
        return self._answer(RolloutView, "GET", "/rollouts")

    def items(self, champion: str, challenger: str) -> list[Disagreement]:
        """The newest shared items of which the champion said this and the challenger that."""
        params = {"champion": champion, "challenger": challenger}
        return self._answer(list[Disagreement], "GET", "/rollouts/items", params=params)

    def retractions(self) -> list[RetractionView]:
        """What is and was taken back."""
        return self._answer(list[RetractionView], "GET", "/retractions")

    def turn(self, digest: str, action: str, reason: str) -> Release:
        """Hold it, let it go on, take it back to shadow or give it more time."""
        body = {"digest": digest, "reason": reason}
        return self._answer(Release, "POST", "/rollouts/turn", body, params={"action": action})

    def waive(self, digest: str, check: str, reason: str, of_source: bool = False) -> Release:
        """Take a check away, or leave a source out."""
        body = {"digest": digest, "check": check, "reason": reason, "of_source": of_source}
        return self._answer(Release, "POST", "/rollouts/waive", body)

    def judge(self, digest: str, labels: Mapping[str, str]) -> Release:
        """Say what shared items are."""
        body = {"digest": digest, "labels": dict(labels)}
        return self._answer(Release, "POST", "/rollouts/labels", body)


LINEAGES: Mapping[str, type[BaseModel]] = {
    "verdict": VerdictLineage,
    "release": ReleaseLineage,
    "label": LabelLineage,
    "source": SourceLineage,
    "exemplar": ExemplarLineage,
}


class Client:
    """A connection to one deploy server on behalf of one person. Use as a context manager.

    Every method raises ServerUnavailableError and ServerRefusedError.
    """

    def __init__(self, settings: DeploySettings, actor: str) -> None:
        """actor is who does what is asked, where no token says so."""
        self._connection = Connection(settings, actor)
        self._ask, self._answer = self._connection.ask, self._connection.answer
        self.rollouts = RolloutCalls(self._connection)
        self.accuracy = AccuracyCalls(self._connection)
        self.notices = NoticeCalls(self._connection)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def status(self) -> Status:
        return self._answer(Status, "GET", "/status")

    def rollout(self) -> Rollout | None:
        """What workers are to serve; None before the first approval."""
        value = self._ask("GET", "/rollout").content
        return None if value == b"null" else Rollout.model_validate_json(value)

    def releases(self) -> list[Release]:
        """Every release, the one that moved last first."""
        return self._answer(list[Release], "GET", "/releases")

    def full_digest(self, prefix: str) -> str:
        """The one release digest that begins with `prefix`; refused where it is none or several."""
        digests = [release.digest for release in self.releases() if release.digest.startswith(prefix.lower())]
        if len(digests) != 1 or not prefix:
            how = "no release begins" if not digests else f"{len(digests)} releases begin"
            raise ServerRefusedError(f"{how} with {prefix!r}", httpx.codes.NOT_FOUND)
        return digests[0]

    def release(self, digest: str) -> ReleaseDetail:
        return self._answer(ReleaseDetail, "GET", f"/releases/{digest}")

    def ledger(self) -> list[LedgerEntry]:
        """Every event of the ledger, oldest first."""
        return self._answer(list[LedgerEntry], "GET", "/ledger")

    def file(self, digest: str, name: str) -> bytes:
        return self._ask("GET", f"/artifacts/{digest}/{name}").content

    def put_signature(self, digest: str, signature: bytes) -> None:
        """Replace a release's signature; refused where no trusted signer made it."""
        self._connection.ask("PUT", f"/artifacts/{digest}/{SIGNATURE}", content=signature)

    def approve(
        self, release: Release, accept: Mapping[str, str], *, promote: bool = True, plan: str | None = None
    ) -> ReleaseDetail:
        """Approve a release as it was looked at, and begin its rollout once enough people did.

        accept: the reason for each finding, by its gate. plan: by which steps; None: by the server's setting.
        """
        seen = {"evaluation_digest": release.candidate.evaluation_digest, "ledger": release.ledger or None}
        body = seen | {"accept": dict(accept), "promote": promote, "plan": plan}
        return self._answer(ReleaseDetail, "POST", f"/releases/{release.digest}/approve", body)

    def promote(self, digest: str) -> Release:
        """Begin an approved release's rollout."""
        return self._answer(Release, "POST", f"/releases/{digest}/promote", {})

    def reject(self, digest: str, reason: str) -> Release:
        """Refuse a proposed release for good."""
        return self._answer(Release, "POST", f"/releases/{digest}/reject", {"reason": reason})

    def rollback(self, reason: str, digest: str | None = None, *, retract: bool = True) -> Release:
        """Take the release on trial or the live one out; returns the one that answers everything then.

        digest: which is meant. retract: whether what it answered is scored anew.
        """
        body = {"reason": reason, "digest": digest, "retract": retract}
        return self._answer(Release, "POST", "/rollback", body)

    def outlook(self) -> Outlook:
        """What an update of today's labels would rest on, and what it would and would not know."""
        return self._answer(Outlook, "GET", "/outlook")

    def request_update(self) -> UpdateRun:
        return self._answer(UpdateRun, "POST", "/updates")

    def cancel_update(self, run: int, reason: str) -> UpdateRun:
        """End an update that waits or runs."""
        return self._answer(UpdateRun, "POST", f"/updates/{run}/cancel", {"reason": reason})

    def update(self, run: int) -> UpdateRun:
        return self._answer(UpdateRun, "GET", f"/updates/{run}")

    def clusters(self) -> list[ClusterSummary]:
        """The clusters of unknowns that wait, the largest first, as the memory last computed them."""
        return self._answer(list[ClusterSummary], "GET", "/clusters")

    def misses(self) -> list[Exemplar]:
        """Waiting items that the pixels called real, whose files declare a generative model."""
        return self._answer(list[Exemplar], "GET", "/misses")

    def clustering(self) -> Clustering:
        return self._answer(Clustering, "GET", "/clustering")

    def cluster(self, cluster: str) -> ClusterDetail:
        return self._answer(ClusterDetail, "GET", f"/clusters/{_part(cluster)}")

    def sheet(self, cluster: str) -> bytes:
        """A cluster's contact sheet, PNG."""
        return self._ask("GET", f"/clusters/{_part(cluster)}/sheet.png").content

    def label(self, request: LabelRequest) -> LabelDone:
        """Call a cluster, or exemplars by id, a family, real or ignore."""
        body = request.model_dump(mode="json")
        return self._answer(LabelDone, "POST", "/labels", body)

    def undo(self, label: int) -> LabelDone:
        """Bring the exemplars of a label back to what they were before."""
        return self._answer(LabelDone, "POST", f"/labels/{label}/undo")

    def labels(self) -> list[LabelEntry]:
        """Every label and undo, the newest first."""
        return self._answer(list[LabelEntry], "GET", "/labels")

    def preview_purge(self, source: str) -> PurgePreview:
        """What a purge of a source would take."""
        return self._answer(PurgePreview, "GET", "/memory/purge", params={"source": source})

    def purge(self, source: str, *, block: bool = False, version: str | None = None) -> PurgeDone:
        """Begin a purge, by its preview's version, or go on with it."""
        body = PurgeRequest(source=source, block=block, version=version).model_dump()
        return self._answer(PurgeDone, "POST", "/memory/purge", body)

    def blocked_sources(self) -> list[BlockedEntry]:
        """Every source that is no longer remembered, the newest first."""
        return self._answer(list[BlockedEntry], "GET", "/memory/blocked")

    def unblock(self, source: str) -> None:
        self._ask("POST", "/memory/unblock", {"source": source})

    def label_studio_tasks(self, clusters: list[str], most: int) -> LabelStudioProject:
        """Tasks of what waits, for Label Studio."""
        body = {"clusters": clusters, "most": most}
        return self._answer(LabelStudioProject, "POST", "/label-studio/tasks", body)

    def label_studio_project(self) -> str:
        """What tells this server's tasks from others."""
        return str(self._ask("GET", "/label-studio/project").json())

    def annotate(self, annotations: Sequence[tuple[str, str, str]], *, dry: bool) -> AnnotationsTaken:
        """Label exemplars (exemplar, family, annotator by their file)."""
        body = {"annotations": annotations, "dry": dry}
        return self._answer(AnnotationsTaken, "POST", "/label-studio/annotations", body)

    def record(
        self, limit: int, actor: str | None, action: str | None, since: datetime | None
    ) -> list[RecordEntry]:
        """Acts of every room that agree with everything given, the newest first."""
        wanted = {"actor": actor, "action": action, "since": since and since.isoformat()}
        given = {name: value for name, value in wanted.items() if value}
        return self._answer(list[RecordEntry], "GET", "/record", params={"limit": str(limit), **given})

    def prove_record(self) -> RecordHead:
        """Have the whole record proven anew, and compared with what was published of it."""
        return self._answer(RecordHead, "GET", "/record/proof")

    def accept_difference(self, difference: str, reason: str) -> None:
        """Put on record that a difference from its published heads, by its name, is known."""
        self._ask("POST", "/record/accept", {"difference": difference, "reason": reason})

    def lineage(self, of: str, id: str) -> BaseModel:
        """From a verdict or release back, or from a label, source or exemplar on, as LINEAGES has them."""
        if of == "source":
            return self._answer(LINEAGES[of], "GET", "/lineage/sources", params={"source": id})
        return self._answer(LINEAGES[of], "GET", f"/lineage/{of}s/{_part(id)}")

    def known_media(self, digests: list[str]) -> dict[str, str]:
        """What imported media is called now ("" for nothing), by its SHA-256; what was never is left out."""
        return self._answer(dict[str, str], "POST", "/known-media", {"digests": digests})

    def test_media(self, digests: list[str]) -> list[str]:
        """Which of this imported media is only measured on, by its SHA-256."""
        return self._answer(list[str], "POST", "/test-media", {"digests": digests})

    def add_files(
        self, name: str, archive: bytes, labels: dict[str, int], source: str | None = None
    ) -> ImportDone:
        """Import one part of a labelled folder, a tar archive; labels are those of the parts before it."""
        params: dict[str, Any] = {"label": list(labels.values())}
        if source is not None:
            params["source"] = source
        # Small files may be large pictures: a part of 64 took more than a minute on a busy machine.
        more = {"content": archive, "params": params, "timeout_s": 900.0}
        return self._answer(ImportDone, "POST", f"/imports/{_part(name)}", **more)

    def add_token(self, wanted: TokenRequest) -> TokenMade:
        """Give a person or a machine a token, which is in this answer alone."""
        return self._answer(TokenMade, "POST", "/tokens", wanted.model_dump())

    def tokens(self) -> list[TokenEntry]:
        """Every token that was ever given, the newest first."""
        return self._answer(list[TokenEntry], "GET", "/tokens")

    def revoke_token(self, name: str) -> TokenEntry:
        """End a token at once."""
        return self._answer(TokenEntry, "POST", f"/tokens/{_part(name)}/revoke")


def _part(text: str) -> str:
    return quote(text, safe="")
