"""What the API takes and answers about Label Studio. Light: every client imports it."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, Field

from deploy.access.roles import checked_name


class ExportRequest(BaseModel):
    """Which clusters become tasks."""

    clusters: list[str] = Field([], max_length=1000, description="ids; none: every cluster that waits")
    most: int = Field(200, ge=1, le=1000, description="tasks at most, the most typical of each cluster first")


class LabelStudioProject(BaseModel):
    """What Label Studio is given."""

    project: str = Field(description="tells this Forgewatch's tasks from others")
    config: str = Field(description="labelling configuration, XML")
    tasks: list[dict[str, Any]]
    waiting: int = Field(description="exemplars that wait in these clusters")


def claimed_name(name: str) -> str:
    """An annotator's name as the record may hold it. Raises ValueError."""
    if (checked := checked_name(name)) is None:
        raise ValueError("an annotator has a name of 1 to 200 characters, none of them unseen")
    return checked


class AnnotationRequest(BaseModel):
    """Annotations of exemplars, which whoever imports them gives. Who gave them elsewhere is a claim."""

    annotations: list[
        tuple[
            Annotated[str, Field(max_length=300)],
            Annotated[str, Field(max_length=200)],
            Annotated[str, AfterValidator(claimed_name)],
        ]
    ] = Field(max_length=100_000, description="exemplar, family, annotator")
    dry: bool = Field(False, description="change nothing; answer as if it were done")
