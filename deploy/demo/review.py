"""The operator's look at the unknowns. A person knows what they are; here an answer key stands in for one."""

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from deploy.demo.operator import ACTOR, Operator, OperatorError
from deploy.demo.story import Story

MAJORITY = 0.5


def name_clusters(story: Story, operator: Operator, truth: Mapping[str, str], folder: Path) -> int:
    """Look at every cluster's contact sheet; name those that hold mostly the unseen family.

    Returns how many items were named. truth is the answer key, by exemplar id. An item of a named
    cluster which the key calls something else is left out, as a person would who sees the sheet.
    """
    named = 0
    for cluster in operator.ask("clusters"):
        operator.run("sheet", cluster["id"], "-o", str(folder / f"{cluster['id']}.png"))
        members = operator.members(cluster["id"])
        seen = Counter(truth.get(member, "?") for member in members)
        story.say(
            f"cluster {cluster['id']}: " + ", ".join(f"{count} {what}" for what, count in seen.most_common())
        )
        if seen[story.unseen] <= MAJORITY * len(members):
            continue
        if len(seen) == 1:
            operator.run("label", cluster["id"], story.unseen, "--as", ACTOR)
        else:
            right = [member for member in members if truth.get(member) == story.unseen]
            operator.run("label", *right, story.unseen, "--as", ACTOR)
        named += seen[story.unseen]
    if not named:
        raise OperatorError(
            f"no cluster of unknowns holds mostly {story.unseen}, so there is nothing to name"
        )
    return named
