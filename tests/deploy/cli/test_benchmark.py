"""`forgewatch benchmark` as a person types it, rightly and wrongly."""

import json
import re
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from deploy.cli.main import main
from updater.benchmark.continual.setup import Setup
from updater.training.step import Recipe


def picture(kind, seed):
    rng = np.random.default_rng(seed)
    y, x = np.mgrid[0:136, 0:128] / 128
    waves = 40 * np.sin(6 * (rng.uniform(0, 3) * x + rng.uniform(0, 3) * y))
    pixels = (128 + waves[:, :, None] + rng.normal(0, 4, (136, 128, 3))).clip(0, 255).astype(np.uint8)
    forged = [pixels, pixels // 16 * 16, pixels // 48 * 48, np.repeat(pixels[::2], 2, 0)][kind]
    return Image.fromarray(forged)


def lay(folder, places):
    seed = 0
    for place, (kind, count) in places.items():
        (folder / place).mkdir(parents=True)
        for number in range(count):
            picture(kind, seed).save(folder / place / f"{number}.png")
            seed += 1
    return folder


@pytest.fixture(scope="module")
def cddb(tmp_path_factory):
    places = {
        f"{task}/{part}/{side}": (kind if side == "1_fake" else 0, count)
        for kind, task in enumerate(("gan", "glow", "flow"), 1)
        for part, count in (("train", 7), ("val", 4))
        for side in ("0_real", "1_fake")
    }
    return lay(tmp_path_factory.mktemp("cddb"), places)


@pytest.fixture(scope="module")
def opencil(tmp_path_factory):
    places = {f"id/{name}": (kind, 12) for kind, name in enumerate(("cat", "dog", "owl"))}
    folder = lay(tmp_path_factory.mktemp("opencil"), {**places, "ood/svhn": (3, 6)})
    (folder / "ood/svhn/damaged.png").write_bytes(b"\xff\xd8\xff")
    return folder


@pytest.fixture(autouse=True)
def small(tmp_path, monkeypatch):
    """In a folder of its own, wide enough for any line, and trained for a moment."""
    recipe = Recipe(1, 1e-3, 4, 2e-3, 0.3)
    monkeypatch.setattr(Setup, "recipe", lambda self, items, first: recipe)
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.chdir(tmp_path)


LUCIR = ("--preset", "cddb-lucir")
QUICK = ("--backbone", "none", "--memory", "8", "--device", "cpu")


@pytest.mark.slow
def test_opencils_folders_are_learnt_in_steps_and_every_score_is_compared(opencil, capsys, fails, tmp_path):
    options = (*QUICK, "--base", "2", "--increment", "1", "--rejection", "energy,fused", "--out", "runs")
    assert main(["benchmark", "opencil", "--data", str(opencil), *options, "--report", "r/figures.json"]) == 0
    told = capsys.readouterr().out
    assert "step-2" in told
    assert "rejection of untrained families" in told
    left_out = "1 files give no picture and are left out (first: "
    assert [left_out in text for text in (told, (tmp_path / "runs/report.md").read_text())] == [True, True]
    report = json.loads((tmp_path / "r/figures.json").read_text())
    means = {name: figure["mean"] for name, figure in report["figures"].items()}
    assert report["tasks"] == ["step-1", "step-2"]
    assert means["aa"] == pytest.approx(means["closed_set_accuracy"])
    assert set(report["each"][0]["rejection"]) == {"energy", "fused"}
    assert 0 <= means["unseen.auc"] <= 1
    written = {path.name for path in (tmp_path / "runs").iterdir()}
    assert written == {"seed-0", "report.json", "report.md", "report.html"}

    finished = (tmp_path / "runs/seed-0/run.json").read_bytes()
    line = fails("opencil", "--data", opencil, *options, "--distillation", "0")
    assert "holds a run of" in line
    assert "--out" in line
    line = fails("opencil", "--data", opencil, *options, "--base", "1")
    assert "other data" in line
    assert (tmp_path / "runs/seed-0/run.json").read_bytes() == finished


@pytest.mark.slow
def test_opencil_takes_cddbs_layout_and_what_is_not_yet_learnt_is_unknown(cddb, tmp_path, capsys):
    words = ["opencil", "--data", str(cddb), "--sequence", "gan,glow", *QUICK]
    assert main(["benchmark", *words]) == 0
    (folder,) = (tmp_path / ".forgewatch/benchmarks").glob("opencil-softmax-rehearsal-mc-8-none-*")
    run = json.loads((folder / "seed-0/run.json").read_text())
    assert run["outcome"]["tasks"] == ["gan", "glow"]
    assert all(0 <= step["figures"]["unseen"]["auc"] <= 1 for step in run["outcome"]["steps"])
    assert run["outcome"]["steps"][0]["figures"]["unseen"]["control_auc"] is not None
    # A second time there is nothing to do but to tell.
    before = (folder / "seed-0/run.json").stat().st_mtime_ns
    assert main(["benchmark", *words, "--compare", str(folder)]) == 0
    assert (folder / "seed-0/run.json").stat().st_mtime_ns == before


@pytest.mark.slow
def test_ctrl_c_leaves_what_is_done_and_the_same_command_goes_on(cddb, tmp_path, monkeypatch, fails):
    from updater.benchmark.learners.methods import LEARNERS

    words = ("cddb", "--data", cddb, "--sequence", "gan,glow", *QUICK, "--no-leave-out", "--out", "runs")
    learn, tried = LEARNERS["softmax-rehearsal"], []

    def stopped(step):
        tried.append(step.classes[-1])
        if len(tried) == 2:
            raise KeyboardInterrupt
        return learn(step)

    monkeypatch.setitem(LEARNERS, "softmax-rehearsal", stopped)
    assert fails(*words, code=130) == "forgewatch: stopped"
    assert main(["benchmark", *map(str, words)]) == 0
    assert tried == ["gan/fake", "glow/fake", "glow/fake"]
    assert (tmp_path / "runs/seed-0/run.json").is_file()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--learner", "icar"), "--learner 'icar' is not known: choose of fine-tuning, joint"),
        (("--scheme", "xx"), "--scheme 'xx' is not known: choose of bc, mc, mt:sumlog, mt:sumlogit"),
        (("--scheme", "mt:sumlogits"), "--scheme 'mt:sumlogits' is not known"),
        (("--head", "round"), "--head 'round' is not known: choose of linear, cosine"),
        (("--exposure", "all"), "--exposure 'all' is not known: choose of none, class, outliers"),
        (("--rejection", "fused,nearest"), "--rejection 'nearest' is not known"),
        (("--rejection", ""), "--rejection '' is not known"),
        (("--backbone", "resnet18x"), "--backbone resnet18x is no model that timm knows: resnet18"),
        (("--backbone", "hf_hub:timm/resnet18"), "is no model that timm knows"),
        (("--backbone", "lcnet_050.nothing"), "lcnet_050.nothing: timm has no such weights"),
        (("--device", "gpu"), "--device gpu is none: choose of cpu, cuda, auto"),
        (("--device", "cuda:77"), "GPUs that torch can use"),
    ],
)
def test_a_value_that_an_option_never_takes_is_one_line_and_ends_with_2(cddb, fails, words, told):
    line = fails("cddb", "--data", cddb, "--sequence", "gan,glow", "--memory", "8", *words, code=2)
    assert told in line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--compare", "nothing"), "nothing holds no run.json"),
        (("--out", "file/below"), "file/below/report.json lies in a file: name one in a folder"),
        (("--out", "file"), "file/report.json lies in a file: name one in a folder"),
        (("--report", "file/figures.json"), "file/figures.json lies in a file: name one in a folder"),
        (("--report", "empty"), "empty is a folder: name a file"),
        (("--checkpoint", "file"), "file is no safetensors file"),
        (("--backbone", "none", "--checkpoint", "timm"), "name one"),
        (("--sequence", "hard"), "lacks gaugan, biggan"),
        (("--sequence", "gan"), "one task cannot be left out"),
        (("--data", "absent"), "absent is none"),
        (("--data", "empty"), "empty holds no TASK"),
    ],
)
def test_what_is_mistyped_is_one_line(cddb, tmp_path, fails, words, told):
    (tmp_path / "file").write_text("hello")
    (tmp_path / "empty").mkdir()
    line = fails("cddb", "--data", cddb, "--sequence", "gan,glow", "--memory", "8", *words)
    assert told in line


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("cdbb",), "No such command 'cdbb'. Did you mean 'cddb'?"),
        (("synthetic", "--data", "here"), "--data"),
        (("synthetic", "--sequence", "easy"), "--sequence"),
        (("cddb", "--base", "2"), "--base"),
        (("cddb", "--width", "8"), "--width"),
        (("cddb", "--memory", "-1"), "'--memory'"),
        (("cddb", "--memory", "many"), "'--memory'"),
        (("opencil", "--base", "0"), "'--base'"),
        (("cddb", "--lerner", "icarl"), "--lerner"),
    ],
)
def test_a_wrong_command_line_ends_with_2(fails, words, told):
    assert told in fails(*words, code=2)


def test_data_is_asked_for_where_it_is_not_given_or_is_of_no_layout(fails, tmp_path):
    assert "there is no --data" in fails("cddb")
    assert "ood/NAME nor benchmark_imglist (OpenCIL) nor TASK" in fails("opencil", "--data", tmp_path)
    (tmp_path / "id").mkdir()
    assert "id holds no classes" in fails("opencil", "--data", tmp_path)


@pytest.mark.slow
def test_a_checkpoint_of_other_classes_is_a_warm_start_and_loses_nothing(cddb, tmp_path, fails):
    words = ("cddb", "--data", cddb, *QUICK, "--no-leave-out")
    assert main(["benchmark", *map(str, words), "--sequence", "gan,glow", "--out", "runs"]) == 0
    (file,) = (tmp_path / "runs/seed-0/parts").glob("*/1.safetensors")
    before = {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()}
    # Of another network it is one line before any data is read; other classes begin below its head.
    other = fails(*words, "--sequence", "gan,glow", "--backbone", "lcnet_035", "--checkpoint", file)
    assert "does not fit the network" in other
    warm = (*words, "--sequence", "gan,glow", "--out", "other", "--checkpoint", file)
    assert main(["benchmark", *map(str, warm)]) == 0
    (first,) = (tmp_path / "runs/seed-0/parts").glob("*/0.safetensors")
    start = ("--sequence", "gan,glow", "--out", "runs", "--checkpoint", str(first))
    assert "holds a run of" in fails(*words, *start)
    assert before == {path: path.read_bytes() for path in (tmp_path / "runs").rglob("*") if path.is_file()}


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--epochs", "0"), "--epochs 0 is for a network as it is: --scheme bc --learner fine-tuning"),
        (("--epochs", "nan"), "--epochs nan: it has to be above 0"),
        (("--epochs", "many"), "'--epochs'"),
        (("--rate", "-1e-3"), "--rate -1e-3: it has to be a number above 0, or two as FIRST,LATER"),
        (("--rate", "1e-3,1e-4,1e-5"), "or two as FIRST,LATER"),
        (("--rate", "fast"), "--rate fast: it has to be a number above 0"),
        (("--crop-px", "8"), "'--crop-px'"),
        (("--crop-px", "100"), "--crop-px 100: a crop's side must be a multiple of 8"),
        (("--no-forensic",), "a network needs a backbone or forensic features: name a --backbone"),
        (("--learner", "dytox"), "--learner dytox reads the feature map of a backbone: name a --backbone"),
        (("--learner", "bic", "--head", "cosine"), "--learner bic has a linear head: leave --head out"),
        (("--learner", "ridge", "--scheme", "bc"), "--learner ridge: no --backbone"),
        (("--distilled", "none"), "--distilled 'none' is not known: choose of all, exemplars"),
        (("--scheme", "mt:max:1"), "--scheme mt:max:1: mt:SUM:LAMBDA has a lambda between 0 and 1"),
        (("--set", "smooth=1"), "--set 'smooth' is not known: choose of optimizer, schedule"),
        (("--set", "batch=0"), "--set batch=0: it has to be a whole number of 1 or more"),
        (("--set", "calibration_share=-1"), "calibration_share=-1: it has to be a share from 0 to below 1"),
        (("--set", "head_epochs=nan"), "--set head_epochs=nan: it has to be a number of 0 or more"),
        (("--set", "optimizer=lion"), "--set optimizer='lion' is not known: choose of adamw, adam, sgd"),
        (("--set", "distortions=blur:1"), "--set distortions=blur-jpeg or TYPE:LEVEL: blur is no distortion"),
        ((*LUCIR, "--backbone", "none"), "cddb-lucir trains a backbone, and --backbone none is none"),
        ((*LUCIR, "--leave-out"), "holds no item back to set thresholds by: choose --no-leave-out"),
        (("--checkpoint", "absent"), "--checkpoint absent is no file: name safetensors, or timm"),
        (("--preset", "cddb-lwf"), "--preset 'cddb-lwf' is not known: choose of cddb-lucir"),
    ],
)
def test_training_that_cannot_be_is_one_line_before_any_data_is_read(fails, words, told):
    assert told in fails("cddb", "--data", "absent", *words, code=2)


def test_the_own_stream_has_its_calibration_items_apart(fails):
    assert "a --preset is of cddb or opencil" in fails("synthetic", *LUCIR, "--backbone", "lcnet_035")


def test_a_gpu_with_too_little_memory_is_told_of_in_one_line(fails, monkeypatch):
    def read(self, reader):
        raise torch.OutOfMemoryError("CUDA out of memory.\nTried to allocate much.")

    monkeypatch.setattr("updater.benchmark.continual.streams.Dataset.read", read)
    assert "choose a smaller --backbone" in fails("synthetic", "--device", "cpu")


@pytest.mark.slow
def test_what_is_given_beside_a_preset_counts(cddb, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(Setup, "recipe", lambda self, items, first: Recipe(1, 1e-3, 0, 2e-3, 0.3, 4))
    words = ["cddb", "--data", cddb, "--sequence", "gan,glow", *LUCIR]
    small = ["--backbone", "lcnet_035", "--crop-px", "64", "--scheme", "mc", "--memory", "4"]
    small += ["--set", "distortions=jpeg:1,blur-jpeg"]
    assert main(["benchmark", *map(str, words), *small, "--device", "cpu", "--report", "r.json"]) == 0
    assert "Remaining differences: native crops" in capsys.readouterr().out
    told = json.loads((tmp_path / "r.json").read_text())
    options = told["options"]
    assert (options["learner"], options["batch"], options["augment"]) == ("lucir", 32, "flip")
    assert (options["options"]["scheme"], options["memory"], options["crops"]["crop_px"]) == ("mc", 4, 64)
    assert (options["architecture"]["width"], options["rates"]) == (2048, [1e-4, 1e-4])
    # CDDB's table 12: a column a task, and their mean.
    assert told["by_distortion"]["blur-jpeg"].keys() == {"acc gan", "acc glow", "acc"}
    names = ("reals_unknown", "reals_fake", "map", "map_mass")
    assert [told["figures"][name]["mean"] is None for name in names] == [True, True, False, False]


def test_no_more_options_are_listed_than_a_reader_takes_in(capsys):
    assert main(["benchmark", "cddb", "--help"]) == 0
    listed = re.findall(r"^│ *\*? *(?:-\w,? *)?(--[a-z-]+)", capsys.readouterr().out, re.MULTILINE)
    assert {"--data", "--learner", "--seeds", "--help"} <= set(listed)
    assert len(listed) <= 28


@pytest.mark.slow
def test_wrong_names_and_layouts_are_refused_and_benchmarks_are_listed_before_torch_is_loaded(tmp_path):
    code = "import sys; from deploy.cli.main import main; code = main(['benchmark', *sys.argv[1:]]);"
    code += "sys.exit(0 if 'torch' in sys.modules else code)"
    lay(tmp_path, {"gan/train/0_real": (0, 1), "lists/benchmark_imglist/own": (0, 0)})
    for part in ("train", "test"):
        (tmp_path / f"lists/benchmark_imglist/own/{part}_own.txt").write_text("absent.png 0\n")
    for words, code_of, told in (
        ("cddb --learner x", 2, "choose of"),
        ("opencil --preset cddb-lucir --rejection msp,x", 2, "choose of"),
        ("cddb --scheme x", 2, "choose of"),
        ("cddb", 1, "there is no --data"),
        (f"cddb --data {tmp_path}", 1, "lacks gaugan"),
        (f"cddb --data {tmp_path} --sequence gan", 1, "1_fake is missing"),
        (f"opencil --data {tmp_path}/lists", 1, "train_own.txt names 'absent.png 0'"),
        ("forgerynet --task image --data .", 1, "has no Training/image_list.txt"),
        (f"forgerynet --task video --synthetic --test-on cddb={tmp_path}/lists", 1, "holds no TASK/"),
        ("", 2, "deeperforensics"),
    ):
        ended = subprocess.run([sys.executable, "-c", code, *words.split()], capture_output=True, text=True)
        assert (ended.returncode, told in ended.stderr + ended.stdout) == (code_of, True), words
