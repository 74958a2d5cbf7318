"""The release on trial, as the ledger's events move it. Pure."""

from deploy.release_records import Action
from deploy.releases.four_eyes import ApprovalError, same_person
from deploy.releases.ledger import Event
from deploy.rollout_records import Trial, Turn

STAYS: tuple[Action, ...] = ("hold", "resume", "extend", "waive", "judge")
"""They change how a trial goes on, and not the release's state."""


def after(trial: Trial | None, event: Event, live: str | None) -> Trial | None:
    """The trial after an event; None where no release is on trial. live: the champion after it.

    Raises ApprovalError where the event is none of a trial that goes on.
    """
    action, turn = event.move.action, event.move.rollout or Turn()
    if action == "begin":
        if trial is not None or live is None or turn.plan is None:
            raise ApprovalError("a rollout begins with a plan, beside a live release, one at a time")
        about = {"number": event.sequence, "release": event.move.digest, "champion": live}
        return Trial.model_validate({**about, "plan": turn.plan, "began": event.at, "since": event.at})
    if trial is None or event.move.digest != trial.release:
        return trial if trial is None or trial.champion == live else None
    if action in ("promote", "rollback", "expire"):
        return None
    return trial.model_copy(update=_changes(trial, event, turn))


def _changes(trial: Trial, event: Event, turn: Turn) -> dict[str, object]:
    match event.move.action:
        case "step":
            if turn.step != trial.step + 1 or turn.step > len(trial.plan.canary):
                raise ApprovalError(f"its rollout has no step {turn.step} after {trial.step}")
            return {"step": turn.step, "since": event.at, "steps": (*trial.steps, event.at)}
        case "hold":
            return {"held": True}
        case "resume":
            return {"held": False}
        case "back to shadow":
            return {"step": 0, "since": event.at}
        case "inconclusive":
            return {"step": 0, "since": event.at, "inconclusive": event.move.reason, "judged": 0}
        case "extend":
            return {"extended": True} | _let_go_on(trial, event)
        case "waive" if turn.check:
            return {"waived": {**trial.waived, turn.check: event.move.reason}} | _let_go_on(trial, event)
        case "waive" if turn.source is not None:
            return {"without": {**trial.without, turn.source: event.move.reason}} | _let_go_on(trial, event)
        case "judge" if turn.labels:
            # Labels settle an inconclusive rollout once there are as many as the evidence asks for.
            judged = trial.judged + len(turn.labels.keys() - trial.labels.keys())
            settles = trial.inconclusive is not None and judged >= LABELS_WANTED
            judges = {id: _judges(trial, id, label, event.move.actor) for id, label in turn.labels.items()}
            changes = {
                "labels": {**trial.labels, **turn.labels},
                "judges": {**trial.judges, **judges},
                "judged": judged,
            }
            return changes | (_let_go_on(trial, event) if settles else {})
        case _:
            return {}


def _judges(trial: Trial, id: str, label: str, actor: str) -> tuple[str, ...]:
    """Who calls an item so once one more person does; another word begins anew."""
    before = trial.judges.get(id, ()) if trial.labels.get(id) == label else ()
    return before if any(same_person(name, actor) for name in before) else (*before, actor)


def _let_go_on(trial: Trial, event: Event) -> dict[str, object]:
    """A person acted: it has its time anew, and is not asked again what they were asked."""
    resumed = trial.asked or trial.inconclusive is not None
    return {"since": event.at, "inconclusive": None, "asked": resumed}


LABELS_WANTED = 20
"""Of disagreements: so many decide on a check that asks for them, and settle what is inconclusive."""
