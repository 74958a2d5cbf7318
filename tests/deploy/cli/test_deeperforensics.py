"""`forgewatch benchmark deeperforensics` where something is wrong: one line each."""

import pytest

from deploy.cli.main import main


@pytest.fixture
def fails(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def fails(*words, code=1):
        assert main(["benchmark", "deeperforensics", *words]) == code
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("forgewatch: ")
        return line

    return fails


def test_data_and_its_reals_are_named_or_our_own_clips_are_asked_for(fails):
    assert "--data" in fails(code=2)
    assert "--data" in fails("--data", "here", "--synthetic", code=2)
    assert "--real names FaceForensics++" in fails("--data", "here", code=2)
    assert "--real" in fails("--synthetic", "--real", "there", code=2)


def test_a_variant_a_model_and_a_folder_that_are_none_are_one_line(fails):
    assert "'mix7' is no variant" in fails("--synthetic", "--train", "std+mix7")
    assert "'level9' is no variant" in fails("--synthetic", "--test", "level9")
    assert "--model gpt is none" in fails("--synthetic", "--model", "gpt")
    assert "here is no folder" in fails("--data", "here", "--real", "there")


def test_a_hidden_test_that_is_none_is_told_before_any_clip_is_made(fails, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("no folder")
    for hidden in ("absent", "empty", "file"):
        line = fails("--synthetic", "--hidden", hidden)
        assert f"{hidden}/real" in line
        assert "real and fake, with videos" in line
    assert not list(tmp_path.glob(".forgewatch/benchmarks/deeperforensics-*"))


def test_recordings_of_the_actors_are_refused_as_reals(fails, tmp_path):
    videos, actors = tmp_path / "data/manipulated_videos/end_to_end", tmp_path / "data/source_videos/M004"
    videos.mkdir(parents=True)
    actors.mkdir(parents=True)
    assert "recordings of actors, which are no reals" in fails(
        "--data", "data", "--real", "data/source_videos"
    )


def test_a_meta_line_of_a_distortion_or_a_level_that_is_none_is_told(fails, tmp_path):
    data, reals = tmp_path / "data", tmp_path / "reals"
    metas = data / "lists/manipulated_videos_distortions_meta"
    for place in (data / "manipulated_videos/end_to_end", data / "manipulated_videos/end_to_end_level_5"):
        place.mkdir(parents=True)
        (place / "000_M001.mp4").write_bytes(b"0")
    for place in (metas, data / "lists/splits", reals):
        place.mkdir(parents=True)
    (reals / "000.mp4").write_bytes(b"0")
    for split, names in (("train", "000_M001.mp4\n"), ("val", ""), ("test", "")):
        (data / f"lists/splits/{split}.txt").write_text(names)
    meta = metas / "manipulated_videos_end_to_end_level_5_meta.txt"
    for line, said in (("BLUR:2", "BLUR is no distortion"), ("GB:6", "6 is no level of GB")):
        meta.write_text(f"end_to_end_level_5/000_M001.mp4 {line}\n")
        told = fails("--data", "data", "--real", "reals", "--train", "std", "--test", "sing")
        assert f"{meta.name}, line 1: {said}" in told
