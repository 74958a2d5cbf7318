"""An import that calls the same bytes another class says so, file by file, and what to do."""

import hashlib

import pytest
from published import lay, picture
from sqlalchemy import insert, literal, select

from deploy.client.importing import import_folder
from memory.schema import exemplars
from updater.progress import no_steps

pytestmark = pytest.mark.slow


def test_the_same_bytes_in_two_folders_are_taken_once_and_the_other_is_told(tmp_path, api):
    done = import_folder(
        lay(tmp_path / "data", {"gan/a.png": picture(405), "real/b.png": picture(405)}), api, no_steps
    )
    assert done.new == {"gan": 1}
    assert [(s.path, s.reason) for s in done.skipped] == [
        ("real/b.png", "the same bytes are imported as gan, from gan/a.png: leave one of the two out")
    ]


def test_media_that_a_person_called_otherwise_in_the_stream_is_left_out_with_what_to_do(
    tmp_path, api, services
):
    folder = lay(tmp_path / "data", {"real/first.png": picture(0)})
    import_folder(folder, api, no_steps)
    lay(folder, {"real/again.png": picture(500), "gan/again.png": picture(501)})
    # As if these two had come by the stream, and a person had called them blend and gan.
    with services.memory.write() as connection:
        for number, family in ((500, "blend"), (501, "gan")):
            own = {
                "id": literal(f"media-0-{number}"),
                "family": literal(family),
                "media_digest": literal(hashlib.sha256(picture(number)).hexdigest()),
            }
            columns = [column.name for column in exemplars.c]
            row = select(*(own.get(name, exemplars.c[name]) for name in columns)).limit(1)
            connection.execute(insert(exemplars).from_select(columns, row))
    done = import_folder(folder, api, no_steps)
    (skipped,) = done.skipped
    assert skipped.path == "real/again.png"
    assert "the same bytes are in the memory as blend" in skipped.reason
    assert skipped.reason.endswith("forgewatch label media-0-500 real")
    assert (done.new, done.already) == ({"gan": 1}, 1)
