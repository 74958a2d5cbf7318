"""What the runbooks tell a person to type and to set is there."""

import re
from pathlib import Path

import pytest
import typer

from deploy.cli.main import app
from deploy.environment import SETTINGS
from ingest.process.settings import ProcessSettings

CHART = Path(__file__).parents[3] / "helm" / "forgewatch"
PAGES = [*sorted((CHART / "runbooks").glob("*.md")), CHART / "BACKUP.md"]
COMMANDS = typer.main.get_command(app).commands  # type: ignore[attr-defined]
VARIABLES = {
    f"{kind.model_config['env_prefix']}{name}".upper()
    for kind in (ProcessSettings, *SETTINGS)
    for name in kind.model_fields
}


def unknown_words(text: str) -> set[str]:
    """Commands, their options and settings of a text that Forgewatch does not have."""
    found = set(re.findall(r"\bFORGEWATCH_[A-Z0-9_]+", text)) - VARIABLES
    for given in re.findall(r"`forgewatch ([^`]+)`", text):
        name, *words = given.split()
        if name not in COMMANDS:
            found.add(name)
            continue
        options = {option for parameter in COMMANDS[name].params for option in parameter.opts}
        found |= {word for word in words if word.startswith("-")} - options
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_a_page_names_no_command_option_or_setting_that_there_is_not(page: Path) -> None:
    assert unknown_words(page.read_text()) == set()


def test_such_words_would_be_seen() -> None:
    text = "`forgewatch undo 3 --force`, `forgewatch resume`, `FORGEWATCH_MEMORY_MAX_CLUSTER`"
    assert unknown_words(text) == {"--force", "resume", "FORGEWATCH_MEMORY_MAX_CLUSTER"}
