"""Files distorted: each step stored again as the data sets were, by the seed, whole or not at all."""

import av
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from updater.distortions import clip as clip_module
from updater.distortions import files
from updater.distortions.clip import Clip, ClipError, to_frame, to_plain_frame, to_rgb
from updater.distortions.clip_writing import STORED_AS, h264, write_clip
from updater.distortions.distortion import LEVELS, DistortionError
from updater.distortions.files import distort_file, generator_of, meta_line, parse_line, read_meta, steps_for
from updater.distortions.methods import DISTORTIONS, distort, step

LIMIT = 10_000_000


def made(source, target, *steps, seed=0, via_xvid=False):
    distort_file(source, target, steps, generator_of(seed, source.name), via_xvid=via_xvid, max_pixels=LIMIT)
    return target


def pictures(path):
    return np.stack([to_rgb(frame) for frame in Clip(path, LIMIT).frames()]).astype(float)


@pytest.mark.parametrize("level", [1, 5])
def test_vc_codes_the_decoded_frames_with_no_detour(write, tmp_path, level):
    source = write("a.mp4", sound=True)
    found = made(source, tmp_path / "vc.mp4", step("VC", level))
    clip = Clip(source, LIMIT)
    factor = {1: 30, 5: 40}[level]
    for name, frames in {
        "straight.mp4": clip.frames(),
        "detour.mp4": (to_frame(to_rgb(frame), frame) for frame in clip.frames()),
    }.items():
        write_clip(tmp_path / name, "mp4", frames, clip, h264(factor), sound=True)
    assert found.read_bytes() == (tmp_path / "straight.mp4").read_bytes()
    assert (tmp_path / "detour.mp4").read_bytes() != found.read_bytes()


def test_through_xvid_is_two_encodings_without_a_detour_between_them(write, tmp_path):
    source = write("a.mp4", sound=True)
    found = made(source, tmp_path / "x.mp4", step("CC", 2), via_xvid=True)
    clip = Clip(source, LIMIT)
    dark = distort(np.random.default_rng(0), pictures(source).astype(np.uint8), [step("CC", 2)])
    write_clip(tmp_path / "1.avi", "avi", map(to_plain_frame, dark), clip, STORED_AS["mpeg4"], sound=False)
    avi = Clip(tmp_path / "1.avi", LIMIT)
    assert avi.codec == "mpeg4"
    write_clip(tmp_path / "2.mp4", "mp4", avi.frames(), avi, h264(23), sound=False)
    assert (pictures(tmp_path / "2.mp4") == pictures(found)).all()
    assert (pictures(made(source, tmp_path / "once.mp4", step("CC", 2))) != pictures(found)).any()


@pytest.mark.parametrize(
    ("name", "via_xvid", "kept"),
    [("VC", False, True), ("VC", True, True), ("CC", False, True), ("CC", True, False)],
)
def test_sound_is_kept_unless_frames_go_through_xvid(write, tmp_path, name, via_xvid, kept):
    found = made(write("a.mp4", sound=True), tmp_path / "b.mp4", step(name, 1), via_xvid=via_xvid)
    with av.open(str(found)) as container:
        assert len(container.streams.audio) == kept


def test_each_step_of_a_mix_reads_what_the_one_before_wrote(write, tmp_path):
    source = write("a.mkv")
    steps = (step("CS", 3), step("VC", 5), step("CC", 1))
    mixed = made(source, tmp_path / "mix.mkv", *steps)
    for number, one in enumerate(steps):
        source = made(source, tmp_path / f"{number}.mkv", one)
    assert mixed.read_bytes() == source.read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.mkv", "1.mkv", "2.mkv", "a.mkv", "mix.mkv"]


@pytest.mark.parametrize("name", ["GNC", "elastic", "row_jitter"])
def test_a_long_clip_in_pieces_is_the_clip_at_once(write, tmp_path, monkeypatch, name):
    source = write("a.mp4", 7)
    whole = made(source, tmp_path / "whole.mp4", step(name, 3))
    monkeypatch.setattr(clip_module, "_BYTES_AT_A_TIME", 2 * 64 * 96 * 3)
    assert made(source, tmp_path / "pieces.mp4", step(name, 3)).read_bytes() == whole.read_bytes()


def test_a_file_is_the_same_by_its_seed_and_its_name(write, tmp_path):
    source = write("a.mp4", 3)
    first, again, other = (
        made(source, tmp_path / f"{number}.mp4", step("GNC", 3), seed=seed).read_bytes()
        for number, seed in enumerate((1, 1, 2))
    )
    assert first == again != other
    assert len({generator_of(0, name).random() for name in ("a.mp4", "b.mp4", "x/a.mp4", "\udc80")}) == 4


def test_a_lossless_picture_is_what_memory_has(tmp_path):
    levels = np.random.default_rng(0).integers(0, 256, (64, 80, 3), dtype=np.uint8)
    Image.fromarray(levels).save(tmp_path / "a.png")
    steps = (step("CS", 2), step("elastic", 2), step("VC", 3))
    found = made(tmp_path / "a.png", tmp_path / "b.png", *steps)
    assert (np.asarray(Image.open(found)) == distort(generator_of(0, "a.png"), levels[None], steps)[0]).all()


@pytest.mark.parametrize(("quality", "subsampling"), [(40, 0), (85, 1), (93, 2)])
def test_a_jpeg_is_stored_with_its_own_tables(tmp_path, quality, subsampling):
    levels = np.random.default_rng(0).integers(0, 256, (64, 80, 3), dtype=np.uint8)
    Image.fromarray(levels).save(tmp_path / "a.jpg", quality=quality, subsampling=subsampling)
    found = made(tmp_path / "a.jpg", tmp_path / "b.jpg", step("CC", 1))
    with Image.open(tmp_path / "a.jpg") as old, Image.open(found) as new:
        assert old.quantization == new.quantization
        assert old.layer == new.layer


@pytest.mark.parametrize("ending", ["webp", "png", "jpg", "bmp"])
def test_a_picture_becomes_what_its_new_name_says(tmp_path, ending):
    Image.new("RGB", (40, 30), (200, 100, 50)).save(tmp_path / "a.jpg")
    with Image.open(made(tmp_path / "a.jpg", tmp_path / f"b.{ending}", step("grey", 5))) as image:
        assert image.size == (40, 30)
        assert np.ptp(np.asarray(image.convert("RGB")), -1).max() < 12


def test_where_nothing_is_to_be_done_the_bytes_are_copied(write, tmp_path):
    source = write("a.mp4", sound=True)
    assert made(source, tmp_path / "b.mp4").read_bytes() == source.read_bytes()


def test_what_fails_names_the_file_and_leaves_what_was_there(write, tmp_path):
    # The first step of the second mix can be a WebM.
    source = write("a.mp4", codec="libvpx-vp9")
    target = tmp_path / "out" / "b.webm"
    target.parent.mkdir()
    target.write_text("before")
    for steps in ([step("VC", 1)], [step("CC", 1), step("VC", 1)]):
        with pytest.raises(ClipError, match=r"^[^.]+/a\.mp4 cannot be written as webm of libx264"):
            made(source, target, *steps)
    assert [path.name for path in target.parent.iterdir()] == ["b.webm"]
    assert target.read_text() == "before"


def test_what_is_no_picture_or_no_video_is_told(write, tmp_path):
    (tmp_path / "a.jpg").write_text("no picture")
    frames = [Image.new("RGB", (8, 8), (shade, 0, 0)) for shade in (0, 250)]
    frames[0].save(tmp_path / "a.gif", save_all=True, append_images=frames[1:], duration=40)
    frames[0].save(tmp_path / "a.png")
    Image.new("RGB", (20_000, 2)).save(tmp_path / "w.png")
    for source, target, told, via_xvid in (
        ("a.jpg", "b.jpg", r"a\.jpg: ", False),
        ("a.gif", "b.gif", r"a\.gif is an animation", False),
        ("a.png", "b.nosuch", r"b\.nosuch: no format of pictures", False),
        ("w.png", "b.png", r"w\.png: 20000 x 2 px cannot go through CC:1 webp:1: .*16383", False),
        ("a.png", "b.png", r"a\.png is no video, so it cannot go through XVID", True),
    ):
        with pytest.raises(DistortionError, match=told):
            made(tmp_path / source, tmp_path / target, step("CC", 1), step("webp", 1), via_xvid=via_xvid)
    with pytest.raises(DistortionError, match=r"b\.txt: a video's file ends with \.mp4"):
        made(write("v.mp4"), tmp_path / "b.txt", step("CC", 1))
    assert not [*tmp_path.glob("b.*"), *tmp_path.glob(".*")]
    assert files.CONTAINERS[".mkv"] == "matroska"


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
    assert parse_line(line) == (path, tuple(steps))
    assert parse_line(f"  {line}\t\n") == (path, tuple(steps))


def test_a_published_line_is_read():
    assert parse_line("end_to_end_mix_2_distortions/000_M101.mp4 VC:3 GNC:1") == (
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
