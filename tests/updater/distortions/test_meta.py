"""Meta files: what is written is read back, and what is wrong is told with its line."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from updater.distortions.distortion import LEVELS, DistortionError
from updater.distortions.meta import meta_line, parsed, read_meta, steps_for
from updater.distortions.methods import DISTORTIONS, step

STEPS = st.lists(st.builds(step, st.sampled_from([*DISTORTIONS]), st.sampled_from(LEVELS)), max_size=4)
PATHS = st.text(st.characters(categories=["L", "N", "P", "S", "Zs"]), min_size=1, max_size=30)


@given(PATHS, STEPS)
def test_a_line_is_read_as_it_was_written(path, steps):
    try:
        line = meta_line(path, steps)
    except DistortionError:
        # Nothing but blanks about it, or an end like a step's, keeps a path out.
        assert path != path.strip() or not path.isprintable() or ":" in path
        return
    assert parsed(line) == (path, tuple(steps))
    assert parsed(f"  {line}\t\n") == (path, tuple(steps))


def test_a_published_line_is_read():
    assert parsed("end_to_end_mix_2_distortions/000_M101.mp4 VC:3 GNC:1") == (
        "end_to_end_mix_2_distortions/000_M101.mp4",
        (step("VC", 3), step("GNC", 1)),
    )


@pytest.mark.parametrize("path", ["", " a", "a ", "a\nb", "a CS:1", "a XX:9", "\udc80"])
def test_a_path_that_could_not_be_read_back_is_refused(path):
    with pytest.raises(DistortionError, match="cannot be named in a meta file"):
        meta_line(path, [step("CS", 1)])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a.mp4 CS:1\nb.mp4 QQ:1\n", "line 2: QQ is no distortion"),
        ("a.mp4 CS:6", "line 1: 6 is no level of CS"),
        ("a.mp4 CS:-1", "line 1: CS:-1 has no level"),
        ("a.mp4 CS:", "line 1: CS: has no level"),
        ("a.mp4 CS:1\n\na.mp4 CS:2", "line 3: a.mp4 was named before"),
        (b"\xff\xfe", "is no text"),
    ],
)
def test_a_meta_file_that_is_wrong_is_told_with_its_line(text, told, tmp_path):
    file = tmp_path / "meta.txt"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(DistortionError, match=told) as error:
        read_meta(file)
    assert str(error.value).startswith(str(file))


def test_a_file_is_found_by_its_path_or_by_the_end_of_one():
    metas = {"x/a.mp4": (step("CS", 1),), "y/b.mp4": (step("CC", 2),), "z/b.mp4": (step("CC", 3),)}
    assert steps_for("x/a.mp4", metas) == steps_for("a.mp4", metas) == (step("CS", 1),)
    assert steps_for("z/b.mp4", metas) == (step("CC", 3),)
    with pytest.raises(DistortionError, match=r"^b\.mp4: several lines of the meta file name it"):
        steps_for("b.mp4", metas)
    with pytest.raises(DistortionError, match=r"^c\.mp4: no line of the meta file names it"):
        steps_for("c.mp4", metas)
    with pytest.raises(DistortionError, match="no line"):
        steps_for(".mp4", metas)
