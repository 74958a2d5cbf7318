"""Benchmarks of protocols as a person types them: what is wrong is one line, before anything is made."""

import json
import shlex

import numpy as np
import pytest
from PIL import Image

from deploy.cli.main import main
from updater.benchmark.synthetic.families import FAMILIES
from updater.training.step import Recipe


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("--task bogus --synthetic", "--task bogus is none: choose of image, spatial, video, temporal"),
        ("--task image", "name the folder of the data with --data, or say --synthetic"),
        ("--task image --synthetic --classes 16", "--classes 16 is none here: choose of 2, 3, 9"),
        ("--task video --synthetic --model x3d", "x3d looks at no videos: choose of x3d_m,"),
        ("--task image --synthetic --model resnet19", "; or f3net, ela:BACKBONE, high"),
        ("--task image --data nowhere", "--data nowhere is no folder"),
        ("--task image --data here --synthetic", "or say --synthetic, and not both"),
        ("--task image --synthetic --model ''", "is no model that timm knows"),
        ("--task image --synthetic --input ''", "--input '' is none here: choose of face, native"),
        ("--task image --synthetic --train-on ''", "--train-on '' is none here: choose of"),
        ("--task image --synthetic --rate inf", "Invalid value for '--rate'"),
        ("--task spatial --synthetic --model unet:", "--model unet: draws no maps: choose of"),
        ("--task spatial --synthetic --model unet:nosuch", "nosuch is no model that timm knows"),
        ("--task spatial --synthetic --model hrnet", "--model hrnet makes no maps: choose of"),
        ("--task spatial --synthetic --model localizer:psuedo", "choose of localizer, :pseudo and :left-out"),
        ("--task image --synthetic --shuffled 16", "--shuffled changes nothing of --task image"),
        ("--task image --synthetic --test-on coco=.", "--test-on coco is none here: choose of cddb,"),
        ("--task image --synthetic --test-on cddb=there", "--test-on cddb=there: there is no folder"),
        ("--task image --synthetic --model forensic --pretrained", "--pretrained changes nothing of"),
        ("--task image --synthetic --model san19_patchwise --pretrained", "has no published weights"),
        ("--task image --synthetic --input face --crops multi", "--crops changes nothing of --task image"),
        ("--task image --synthetic --model resnet18.nosuch", "timm has no such weights: a1_in1k or"),
        ("--task video --synthetic --checkpoint absent.safetensors", "absent.safetensors' does not exist"),
        ("--task temporal --synthetic --model bnm", "--model bnm is none here: choose of convolutions"),
        # What a task has where nothing is said is never refused.
        *(
            (f"--task {task} --synthetic --out file", "file/report.json lies in a file")
            for task in ("image", "spatial", "video", "temporal")
        ),
        ("--task temporal --synthetic --input face", "--input changes nothing of --task temporal with"),
    ],
)
def test_what_is_wrong_is_one_line(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("no folder")
    assert main(["benchmark", "forgerynet", *shlex.split(words)]) != 0
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1
    assert not list(tmp_path.glob(".forgewatch/benchmarks/forgerynet-*")), "nothing was made"


@pytest.fixture
def fails_deeperforensics(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def fails_deeperforensics(*words, code=1):
        assert main(["benchmark", "deeperforensics", *words]) == code
        (line,) = capsys.readouterr().err.splitlines()
        assert line.startswith("forgewatch: ")
        return line

    return fails_deeperforensics


def test_data_and_its_reals_are_named_or_our_own_clips_are_asked_for(fails_deeperforensics):
    assert "--data" in fails_deeperforensics(code=2)
    assert "--data" in fails_deeperforensics("--data", "here", "--synthetic", code=2)
    assert "--real names FaceForensics++" in fails_deeperforensics("--data", "here", code=2)
    assert "--real" in fails_deeperforensics("--synthetic", "--real", "there", code=2)


def test_a_variant_a_model_and_a_folder_that_are_none_are_one_line(fails_deeperforensics):
    assert "'mix7' is no variant" in fails_deeperforensics("--synthetic", "--train", "std+mix7")
    assert "'level9' is no variant" in fails_deeperforensics("--synthetic", "--test", "level9")
    line = fails_deeperforensics("--synthetic", "--model", "gpt")
    assert "--model gpt looks at no videos: choose of forensic, frames:BACKBONE, c3d," in line
    assert "here is no folder" in fails_deeperforensics("--data", "here", "--real", "there")


def test_a_hidden_test_that_is_none_is_told_before_any_clip_is_made(fails_deeperforensics, tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("no folder")
    for hidden in ("absent", "empty", "file"):
        line = fails_deeperforensics("--synthetic", "--hidden", hidden)
        assert f"{hidden}/real" in line
        assert "real and fake, with videos" in line
    assert not list(tmp_path.glob(".forgewatch/benchmarks/deeperforensics-*"))


def test_recordings_of_the_actors_are_refused_as_reals(fails_deeperforensics, tmp_path):
    videos, actors = tmp_path / "data/manipulated_videos/end_to_end", tmp_path / "data/source_videos/M004"
    videos.mkdir(parents=True)
    actors.mkdir(parents=True)
    line = fails_deeperforensics("--data", "data", "--real", "data/source_videos")
    assert "recordings of actors, which are no reals" in line


def test_a_meta_line_of_a_distortion_or_a_level_that_is_none_is_told(fails_deeperforensics, tmp_path):
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
        told = fails_deeperforensics("--data", "data", "--real", "reals", "--train", "std", "--test", "sing")
        assert f"{meta.name}, line 1: {said}" in told


def lay(folder, places):
    """Makes one picture for each place."""
    for number, place in enumerate(places):
        (folder / place).mkdir(parents=True, exist_ok=True)
        pixels = np.random.default_rng(number).integers(0, 256, (136, 128, 3), np.uint8)
        Image.fromarray(pixels).save(folder / place / f"{number}.png")
    return folder


@pytest.mark.slow
def test_the_newcomers_way_is_gone_from_a_folder_of_sources(tmp_path, monkeypatch, capsys):
    from updater.benchmark.synthetic import tasks
    from updater.candidate import plan

    monkeypatch.chdir(tmp_path)
    for words, said in (([], "no --data"), (["--data", str(lay(tmp_path / "none", ["a/0_real"]))], "1_fake")):
        assert main(["benchmark", "newcomer", *words]) == 1
        assert said in capsys.readouterr().err
    monkeypatch.setattr(tasks, "FAMILIES", {name: FAMILIES[name] for name in ("upsampled", "blended")})
    for recipe in ("FIRST", "UPDATE"):
        monkeypatch.setattr(plan, recipe, Recipe(1, 1e-3, 4, 2e-3, 0.1))
    places = ["gan/0_real"] * 10 + ["gan/1_fake"] * 4 + ["phone/0_real"] * 6
    data = lay(tmp_path / "data", places)
    words = ["newcomer", "--data", str(data), "--reals", "40", "--each", "20", "--report", "r.json"]
    assert main(["benchmark", *words]) == 0
    assert "forgeries_not_real_after" in capsys.readouterr().out
    figures = json.loads((tmp_path / "r.json").read_text())
    assert figures["figures"]["others_not_real_after"]["n"] == 8
    assert figures["figures"]["forgeries_not_real_after"]["n"] == 4
    assert set(figures["families"]) == {"gan", "phone"}
