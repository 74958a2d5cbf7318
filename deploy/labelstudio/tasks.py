"""What Label Studio is given: its labelling configuration, and a task an exemplar.

The formats are those of Label Studio's documentation, "Label Studio JSON format of annotated tasks".
"""

import base64
from collections.abc import Iterable
from typing import Any
from xml.sax.saxutils import quoteattr

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
    """Return one task: the picture within, what is known of the exemplar, and what it resembles.

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
