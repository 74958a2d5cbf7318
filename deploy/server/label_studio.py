"""The API for Label Studio: tasks of what waits, and annotations of them."""

import io
from typing import Any

import numpy as np
import structlog
from fastapi import APIRouter
from PIL import Image

from deploy.access.guard import Actor, GuardedRoute
from deploy.access.roles import least
from deploy.label_studio import configuration, task
from deploy.label_studio_records import AnnotationRequest, ExportRequest, LabelStudioProject
from deploy.record.chain import Act
from deploy.server.clusters import MAX_LABEL_BYTES
from deploy.server.services import Opened
from memory.annotations import Annotation, take
from memory.clusters.review import list_clusters
from memory.clusters.views import UnknownClusterError
from memory.crops.crop_store import CropsDamagedError, CropsMissingError
from memory.records import IGNORE, REAL, AnnotationsTaken
from memory.rows import counts, exemplars_of

log = structlog.get_logger()
router = APIRouter(tags=["memory"], route_class=GuardedRoute)


@router.post("/label-studio/tasks", openapi_extra=least("reviewer"))
def export_tasks(services: Opened, actor: Actor, body: ExportRequest) -> LabelStudioProject:
    """Tasks of what waits, each with a picture that is encoded here from crops.

    That they went out is put on record. 404 for an unknown cluster.
    """
    listed = {cluster.id: cluster for cluster in list_clusters(services.memory)}
    if unknown := [name for name in body.clusters if name not in listed]:
        raise UnknownClusterError(f"there is no cluster {unknown[0]}; `forgewatch clusters` lists them")
    chosen = [listed[name] for name in dict.fromkeys(body.clusters or listed)]
    share = -(-body.most // max(1, len(chosen)))
    with services.memory.read() as connection:
        families = {family for (_, family), _ in counts(connection).items() if family} - {REAL, IGNORE}
        rows = {c.id: exemplars_of(connection, c.members[:share]) for c in chosen}
    tasks: list[dict[str, Any]] = []
    for cluster in chosen:
        for exemplar in rows[cluster.id]:
            if len(tasks) < body.most and (png := _picture(services, exemplar.crops_digest)) is not None:
                resembles = cluster.resembles if cluster.resembles in families | {REAL} else None
                tasks.append(task(exemplar, cluster.id, png, services.ledger.id, resembles))
    details = {"clusters": [cluster.id for cluster in chosen], "tasks": len(tasks)}
    services.record.append(Act(actor, "export", "label studio", details))
    return LabelStudioProject(
        project=services.ledger.id,
        config=configuration(families),
        tasks=tasks,
        waiting=sum(len(cluster.members) for cluster in chosen),
    )


@router.get("/label-studio/project", openapi_extra=least("viewer"))
def get_project(services: Opened) -> str:
    """What tells this Forgewatch's tasks from others."""
    return services.ledger.id


@router.post("/label-studio/annotations", openapi_extra=least("reviewer"), max_body_size=2 * MAX_LABEL_BYTES)
def import_annotations(services: Opened, actor: Actor, body: AnnotationRequest) -> AnnotationsTaken:
    """Label what waits as its annotators called it, in the importer's name: all of it or nothing."""
    annotations = [Annotation(*fields) for fields in body.annotations]
    done = take(services.memory, annotations, actor, dry=body.dry)
    log.info("annotations taken", labels=len(done.labels), exemplars=done.labelled, actor=actor, dry=body.dry)
    return done


def _picture(services: Opened, digest: str | None) -> bytes | None:
    """The whole picture where it is kept, else the crops side by side; None where they are gone."""
    try:
        views = services.crops.load_views(digest or "")
    except (CropsMissingError, CropsDamagedError):
        return None
    picture = np.concatenate(views.crops[:4], axis=1) if views.picture is None else views.picture
    encoded = io.BytesIO()
    Image.fromarray(picture).save(encoded, "PNG")
    return encoded.getvalue()
