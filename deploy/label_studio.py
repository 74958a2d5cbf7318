"""Label Studio: its labelling configuration and tasks, and the annotations that come back.

The formats are those of Label Studio's documentation, "Label Studio JSON format of annotated tasks".
"""

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any
from xml.sax.saxutils import quoteattr

from pydantic import BaseModel, BeforeValidator, Field, TypeAdapter, ValidationError

from deploy.access.roles import checked_name as shown_name
from memory.annotations import Annotation
from memory.labels import LabelError, checked_name
from memory.records import IGNORE, REAL, Exemplar

CLASS, NAME, IMAGE = "class", "name", "image"
"""The controls of the configuration, and the object that they are about."""

NEW = "new family"
"""The choice of whoever sees a family that has no name yet, and writes one."""


def configuration(families: Iterable[str]) -> str:
    """Return the labelling configuration for these families, as XML."""
    choices = "".join(
        f"    <Choice value={quoteattr(name)}/>\n" for name in (REAL, *sorted(families), NEW, IGNORE)
    )
    return (
        "<View>\n"
        f'  <Image name="{IMAGE}" value="$image" zoom="true"/>\n'
        f'  <Choices name="{CLASS}" toName="{IMAGE}" choice="single" required="true">\n'
        f"{choices}  </Choices>\n"
        f'  <TextArea name="{NAME}" toName="{IMAGE}" maxSubmissions="1" rows="1"\n'
        f'    placeholder="name of a new family: lower-case letters, digits, single hyphens"\n'
        f'    visibleWhen="choice-selected" whenTagName="{CLASS}" whenChoiceValue="{NEW}"/>\n'
        "</View>\n"
    )


def task(exemplar: Exemplar, cluster: str, png: bytes, project: str, resembles: str | None) -> dict[str, Any]:
    """Return one task: the picture within, the exemplar's facts, and its neighbours.

    project says which Forgewatch it came from; resembles is a known class, or None.
    """
    given: dict[str, Any] = {
        "data": {
            "image": f"data:image/png;base64,{base64.b64encode(png).decode()}",
            "exemplar": exemplar.id,
            "project": project,
            "cluster": cluster,
            "source": exemplar.source,
            "release": exemplar.release,
            "unknown_score": exemplar.unknown_score,
        }
    }
    if resembles is not None:
        choice = {"from_name": CLASS, "to_name": IMAGE, "type": "choices", "value": {"choices": [resembles]}}
        version = exemplar.release[:12] if exemplar.release else "imported"
        given["predictions"] = [{"model_version": version, "result": [choice]}]
    return given


MAX_BYTES = 2**28


class NoExportError(ValueError):
    """The file is no JSON export of Label Studio. Fatal for the file."""


@dataclass
class Read:
    """The content of a file: at most one annotation an exemplar. left_out: lines on tasks without one."""

    annotations: list[Annotation] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)


class _Data(BaseModel):
    exemplar: str = Field("", max_length=300)
    project: str = ""


def _annotator(value: Any) -> Any:
    """A person: their address where the export has it, else their number."""
    return value.get("email") or value.get("id") if isinstance(value, dict) else value


class _Given(BaseModel):
    completed_by: Annotated[str | int | None, BeforeValidator(_annotator)] = None
    was_cancelled: bool = False
    created_at: str = ""
    result: list[dict[str, Any]] = []


class _Task(BaseModel):
    id: int | str = "?"
    data: _Data = _Data()
    annotations: list[_Given] = []


_EXPORT = TypeAdapter(list[_Task])


def read(export: bytes, project: str) -> Read:
    """Read a JSON export of this Forgewatch's tasks. Raises NoExportError.

    An exemplar that two annotators, or two tasks, call otherwise is left out; one that they call the same is
    the first annotator's.
    """
    if len(export) > MAX_BYTES:
        raise NoExportError(f"more than {MAX_BYTES} bytes: export fewer tasks at once")
    try:
        tasks = _EXPORT.validate_json(export)
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the file"
        raise NoExportError(f"no JSON export of Label Studio ({place}: {first['msg']})") from error
    done, annotations = Read(), dict[str, list[Annotation]]()
    for task in tasks:
        if task.data.project != project or not task.data.exemplar:
            done.left_out.append(f"task {task.id}: it is of another project")
            continue
        for annotation in sorted(task.annotations, key=lambda annotation: annotation.created_at):
            try:
                if (family := _family(annotation)) is not None:
                    who = f"label-studio:{annotation.completed_by}"[:200]
                    annotations.setdefault(task.data.exemplar, []).append(
                        Annotation(task.data.exemplar, family, who)
                    )
            except LabelError as error:
                done.left_out.append(f"task {task.id}: {error}")
    for exemplar, labels in annotations.items():
        if len({annotation.family for annotation in labels}) == 1:
            done.annotations.append(labels[0])
        else:
            opinions = ", ".join(f"{annotation.annotator} says {annotation.family}" for annotation in labels)
            done.left_out.append(f"{exemplar}: its annotators contradict each other: {opinions}")
    return done


def _family(annotation: _Given) -> str | None:
    """An annotation's label; None where it was skipped. Raises LabelError."""
    if annotation.was_cancelled:
        return None
    if annotation.completed_by is None or shown_name(str(annotation.completed_by)) is None:
        raise LabelError("an annotation names no annotator")
    choice = _value(annotation.result, CLASS, "choices")
    if choice == NEW:
        choice = _value(annotation.result, NAME, "text")
    if choice is None:
        raise LabelError(f"an annotation has no {CLASS}: its project has another configuration")
    return checked_name(choice.strip())


def _value(result: Sequence[dict[str, Any]], control: str, kind: str) -> str | None:
    for part in result:
        value = part.get("value")
        if part.get("from_name") == control and isinstance(value, dict):
            given = value.get(kind)
            if isinstance(given, list) and len(given) == 1 and isinstance(given[0], str):
                return given[0]
            if isinstance(given, str):
                return given
    return None
