"""The command `forgewatch lineage`, against a real server in this process."""

from typing import Any

import pytest
from lineage_story import MEDIA, Story

from deploy.cli.main import main
from deploy.lineage import back


@pytest.fixture
def run(
    served: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, story: Story
) -> Any:
    """Runs the command; returns its exit code, what it said and what it complained of."""
    monkeypatch.setenv("FORGEWATCH_DEPLOY_URL", served)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(back, "read_verdict", lambda *_: story.verdict)

    def lineage(*words: str) -> tuple[int, str, str]:
        code = main(["lineage", *words])
        return code, *capsys.readouterr()

    return lineage


def test_each_way_is_walked_in_one_command(run: Any, story: Story) -> None:
    code, said, _ = run(story.verdict.id)
    assert code == 0
    assert f"release {story.second.version}: live" in said
    assert f"trained from {story.first.version}" in said
    for shown in ("approve", "upsampling", "bea", f"{MEDIA}-0-77"):
        assert shown in said
    for words, shown in (
        (("--label", "2"), "label 2: 2 exemplars called blend by cem"),
        (("--source", "web"), "source web: exemplars in the memory: "),
        (("--exemplar", f"{MEDIA}-0-5"), "label 3: 1 exemplars called upsampling by bea"),
        (("--release", story.first.digest[:8]), "2 real"),
    ):
        code, said, _ = run(*words)
        assert code == 0
        assert shown in said
        assert story.first.version in said or story.second.version in said


def test_it_wants_one_thing_to_begin_at_and_says_what_is_not_known(run: Any) -> None:
    for words in ((), ("x", "--label", "1")):
        code, _, complaint = run(*words)
        assert code == 2
        assert "give a verdict's id, or one of --label" in complaint
    code, _, complaint = run("--label", "99")
    assert code == 1
    assert "there is no label 99" in complaint
