"""The records that cross a process have JSON schemas, which say what their fields mean."""

import json

import pytest
from pydantic import BaseModel

from deploy.releases.records import STATES, Release
from detector.records import Rollout, Verdict
from updater.records import Candidate


@pytest.mark.parametrize("record", [Verdict, Rollout, Candidate, Release])
def test_a_record_exports_a_json_schema_that_names_its_fields(record: type[BaseModel]) -> None:
    schema = json.loads(json.dumps(record.model_json_schema()))
    assert schema["type"] == "object"
    assert schema["description"]
    assert set(schema["properties"]) == set(record.model_fields)
    required = {name for name, field in record.model_fields.items() if field.is_required()}
    assert set(schema.get("required", ())) == required


def test_the_schema_of_a_release_lists_its_states() -> None:
    assert Release.model_json_schema()["properties"]["state"]["enum"] == list(STATES)
