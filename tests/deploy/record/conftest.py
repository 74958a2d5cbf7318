"""A record in a database of the test's own, and a SQL shell that holds nothing sacred."""

import pytest


@pytest.fixture
def shell(record, url, without_triggers):
    with without_triggers(url) as connection:
        yield connection
