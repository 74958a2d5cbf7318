"""Releases that a measurement takes live straight by the ledger, since they would pass no gate."""

import shutil
from collections.abc import Mapping
from pathlib import Path

from deploy.releases.approval import fold
from deploy.releases.ledger import Event, Ledger, Move
from detector.release.artifact import (
    EVALUATION,
    LOCALIZER,
    Artifact,
    seal,
)
from updater.deploy_client import DeployClient
from updater.records import Candidate
from updater.settings import UpdaterSettings

_ACTOR, _WHY = "forgewatch throughput", "for timing only"


def go_live(artifact: Artifact, settings: Mapping[str, str]) -> None:
    """Take an artifact live in the stack of these settings.

    Raises DeployError and LedgerError.
    """
    with DeployClient(UpdaterSettings(deploy_url=settings["FORGEWATCH_DEPLOY_URL"])) as deploy:
        deploy.put(artifact)
    candidate = Candidate(
        digest=artifact.digest,
        evaluation_digest=artifact.manifest.files[EVALUATION],
        parent=None,
        update=0,
        classes=artifact.manifest.classes,
        gates=(),
    )
    about = (artifact.digest, candidate.evaluation_digest, _WHY)
    ledger = Ledger(settings["FORGEWATCH_DEPLOY_DATABASE_URL"])
    ledger.append(
        lambda history: [
            Move(_ACTOR, "propose", *about, candidate=candidate),
            Move(_ACTOR, "approve", *about),
            Move(_ACTOR, "promote", *about),
        ]
    )
    ledger.close()


def go_back(settings: Mapping[str, str]) -> None:
    """Bring the release before the live one back. Raises LedgerError."""

    def moves(history: tuple[Event, ...]) -> list[Move]:
        live = fold(history).live
        assert live is not None
        return [Move(_ACTOR, "rollback", live.digest, live.candidate.evaluation_digest, _WHY)]

    ledger = Ledger(settings["FORGEWATCH_DEPLOY_DATABASE_URL"])
    ledger.append(moves)
    ledger.close()


def without_maps(artifact: Artifact, folder: Path) -> Artifact:
    """Make the same release without its localizer, in a new folder."""
    folder.mkdir(parents=True)
    for name in artifact.manifest.files.keys() - set(LOCALIZER.files):
        shutil.copyfile(artifact.folder / name, folder / name)
    return seal(folder, artifact.manifest.model_copy(update={"localizer": None}))
