import os

import pytest
from pydantic import Field, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from ingest.process.frame import ProcessSettings, find_problems, unknown_names


class MemorySettings(BaseSettings):
    model_config = SettingsConfigDict(env_prefix="FORGEWATCH_MEMORY_", frozen=True)

    max_items: int = Field(3, ge=1, description="most items")
    key: SecretStr | None = None
    urls: dict[str, int] = {}

    @model_validator(mode="after")
    def _not_both(self):
        if self.max_items > 100 and self.urls:
            raise ValueError("too much of both")
        return self


KINDS = (ProcessSettings, MemorySettings)


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch):
    for name in os.environ:
        if name.upper().startswith("FORGEWATCH_"):
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ({"MAX_ITEMS": "x"}, ["MAX_ITEMS: Input should be a valid integer"]),
        ({"MAX_ITEMS": "0"}, ["MAX_ITEMS: Input should be greater than or equal to 1 (most items)"]),
        ({"URLS": "{"}, ["URLS: not the JSON that it must be: Expecting property name"]),
        ({"URLS": '{"a": "b"}'}, ["URLS: at a: Input should be a valid integer"]),
        ({"URLS": '{"a": 1}', "MAX_ITEMS": "101"}, ["…: too much of both"]),
        (
            {"MAX_ITEM": "1"},
            ["MAX_ITEM: there is no such setting; did you mean FORGEWATCH_MEMORY_M"],
        ),
        ({"SOMETHING": "1"}, ["SOMETHING: there is no such setting; unset it"]),
    ],
)
def test_what_is_wrong_is_told_by_the_name_of_its_variable(monkeypatch, value, said):
    for name, text in value.items():
        monkeypatch.setenv(f"FORGEWATCH_MEMORY_{name}", text)
    found = [str(problem) for problem in find_problems(KINDS)]
    assert len(found) == len(said)
    for line, start in zip(found, said, strict=True):
        assert line.startswith(f"FORGEWATCH_MEMORY_{start}")


def test_all_that_is_wrong_is_told_at_once(monkeypatch):
    monkeypatch.setenv("FORGEWATCH_MEMORY_MAX_ITEMS", "x")
    monkeypatch.setenv("FORGEWATCH_LOG_FORMAT", "xml")
    assert {problem.setting for problem in find_problems(KINDS)} == {
        "FORGEWATCH_MEMORY_MAX_ITEMS",
        "FORGEWATCH_LOG_FORMAT",
    }


def test_settings_of_rooms_that_are_not_read_are_not_judged_and_those_of_no_room_are(monkeypatch):
    monkeypatch.setenv("FORGEWATCH_DEPLOY_ANYTHING", "1")
    monkeypatch.setenv("FORGEWATCH_MEMROY_MAX_ITEMS", "1")
    (found,) = unknown_names(KINDS)
    assert found.setting == "FORGEWATCH_MEMROY_MAX_ITEMS"
    assert "FORGEWATCH_MEMORY_MAX_ITEMS" in found.problem


def test_right_settings_have_no_problem_in_either_case_of_letters(monkeypatch):
    monkeypatch.setenv("forgewatch_memory_max_items", "5")
    monkeypatch.setenv("FORGEWATCH_LOG_FORMAT", "json")
    assert find_problems(KINDS) == []


def test_a_value_is_never_shown_since_it_may_be_a_secret(monkeypatch):
    monkeypatch.setenv("FORGEWATCH_MEMORY_URLS", '{"a": "hunter2"}')
    monkeypatch.setenv("FORGEWATCH_MEMORY_KEYS", "hunter2")
    found = find_problems(KINDS)
    assert len(found) == 2
    assert not any("hunter2" in str(problem) for problem in found)
