"""A checkpoint becomes an ONNX graph that says what its network says; what does not fit is one clear line."""

import json

import numpy as np
import pytest
import torch
import typer
from makers import WORTH
from safetensors.torch import load_file, save_file

from deploy.cli.main import main
from detector.release.artifact import sha256_of
from detector.release.experts import LOGIT, PICTURES
from detector.serving.session import Session
from updater.experts import build as building
from updater.experts.build import Layout, build, expert_network, proof_requests
from updater.experts.check import ExpertError
from updater.experts.registry import ExpertRegistry, RegisteredExpert
from updater.training.weights import WeightsError

NAME = "test_efficientnet"
HALF = (127.5, 127.5, 127.5)


def one_line(error):
    assert "\n" not in str(error.value)
    return str(error.value)


def logits(path, contract, pictures):
    return Session(path, contract, threads=1).score({PICTURES: pictures})[LOGIT]


@pytest.fixture
def pictures():
    return np.random.default_rng(1).integers(0, 256, (3, 64, 64, 3), np.uint8)


def test_the_logit_is_the_published_networks_on_its_own_input(checkpoint, contract, pictures, tmp_path):
    path, network = checkpoint()
    recipe = Layout(path, architecture=NAME, mean=HALF, deviation=HALF)
    made = build(recipe, contract, tmp_path / "expert.onnx")
    images = (torch.from_numpy(pictures).permute(0, 3, 1, 2).float() / 255 - 0.5) / 0.5
    with torch.no_grad():
        published = network(images)[:, 0].numpy()
    assert np.allclose(logits(tmp_path / "expert.onnx", made, pictures), published, atol=1e-4)
    assert made.digest
    assert path.name in made.checkpoint


@pytest.mark.parametrize("interpolation", ["bilinear", "bicubic"])
@pytest.mark.parametrize("seen", [48, 96])
def test_a_resize_is_torchs_antialiased_one(seen, interpolation):
    images = torch.rand(2, 3, 64, 64)
    matrix = building._resizing(64, seen, interpolation)
    theirs = torch.nn.functional.interpolate(images, (seen, seen), mode=interpolation, antialias=True)
    assert torch.allclose(matrix @ images @ matrix.T, theirs, atol=1e-5)


def test_two_logits_become_one_and_their_order_can_be_said(checkpoint, contract, pictures, tmp_path):
    path, _ = checkpoint(logits=2)
    found = [
        logits(out, build(Layout(path, architecture=NAME, fake_logit=fake), contract, out), pictures)
        for fake in (0, 1)
        for out in [tmp_path / f"{fake}.onnx"]
    ]
    assert np.allclose(found[0], -found[1], atol=1e-4)
    assert np.abs(found[0]).max() > 1e-4


def test_a_head_in_a_file_of_its_own_is_as_good_as_one_inside(checkpoint, contract, pictures, tmp_path):
    path, _ = checkpoint()
    state = load_file(path)
    head = {name: state.pop(f"classifier.{name}") for name in ("weight", "bias")}
    save_file(state, tmp_path / "body.safetensors")
    save_file(head, tmp_path / "head.safetensors")
    recipe = Layout(tmp_path / "body.safetensors", tmp_path / "head.safetensors", NAME)
    apart, inside = (
        logits(out, build(one, contract, out), pictures)
        for one, out in (
            (recipe, tmp_path / "apart.onnx"),
            (Layout(path, architecture=NAME), tmp_path / "in.onnx"),
        )
    )
    assert np.array_equal(apart, inside)


def test_what_a_checkpoint_says_of_itself_need_not_be_said(checkpoint):
    path, _ = checkpoint(architecture=NAME, px="48")
    network, _ = expert_network(Layout(path), 64)
    assert network.resize.shape == (48, 64)


def test_a_head_of_other_classes_is_refused(checkpoint):
    path, _ = checkpoint(logits=1000)
    with pytest.raises(ExpertError, match="head of 1000 classes: an expert has one or two logits") as error:
        expert_network(Layout(path, architecture=NAME), 64)
    one_line(error)


def test_a_checkpoint_without_a_head_is_refused(checkpoint, tmp_path):
    path, _ = checkpoint()
    state = {name: value for name, value in load_file(path).items() if not name.startswith("classifier")}
    save_file(state, tmp_path / "body.safetensors")
    with pytest.raises(ExpertError, match="has no head: give the file of one with --head"):
        expert_network(Layout(tmp_path / "body.safetensors", architecture=NAME), 64)


def test_a_head_on_another_network_is_refused(checkpoint, tmp_path):
    path, _ = checkpoint()
    save_file({"weight": torch.zeros(1, 7)}, tmp_path / "head.safetensors")
    with pytest.raises(ExpertError, match="head on 7 features, and the network gives 256"):
        expert_network(Layout(path, tmp_path / "head.safetensors", NAME), 64)


def test_another_architecture_is_refused(checkpoint):
    path, _ = checkpoint()
    with pytest.raises(WeightsError, match="does not fit the network"):
        expert_network(Layout(path, architecture="test_resnet"), 64)


def test_numbers_that_are_none_are_refused(checkpoint, tmp_path):
    path, _ = checkpoint()
    state = load_file(path)
    state["classifier.bias"] = torch.tensor([float("nan")])
    save_file(state, tmp_path / "nan.safetensors")
    with pytest.raises(WeightsError, match=r"numbers in classifier.bias that are none"):
        expert_network(Layout(tmp_path / "nan.safetensors", architecture=NAME), 64)


def test_a_pickle_is_never_read_and_the_line_says_how_to_make_safetensors_of_it(tmp_path):
    path = tmp_path / "published.pth"
    path.write_bytes(b"not even looked at")
    with pytest.raises(ExpertError, match=r"is a pickle.*save_file") as error:
        expert_network(Layout(path, architecture=NAME), 64)
    one_line(error)


def test_a_graph_that_differs_from_torch_is_refused(checkpoint, contract, tmp_path, monkeypatch):
    write = building.write_onnx

    def write_another(network, *others):
        network.head.bias.add_(0.1)
        written = write(network, *others)
        network.head.bias.sub_(0.1)
        return written

    monkeypatch.setattr(building, "write_onnx", write_another)
    path, _ = checkpoint()
    with pytest.raises(ExpertError, match="differs between PyTorch and ONNX"):
        build(Layout(path, architecture=NAME), contract, tmp_path / "expert.onnx")


def test_the_proof_has_pictures_on_which_networks_stumble():
    (many, _) = proof_requests(8)
    levels = [set(np.unique(one)) for one in many[PICTURES]]
    assert {0} in levels
    assert {255} in levels


# Experts are registered as a whole or not at all, and what is damaged is told of.
@pytest.fixture
def registry(tmp_path):
    return ExpertRegistry(tmp_path)


@pytest.fixture
def row(tmp_path, contract):
    (tmp_path / "made.onnx").write_bytes(b"a graph")
    digest = sha256_of(tmp_path / "made.onnx")
    return RegisteredExpert(contract=contract.model_copy(update={"digest": digest}), worth=WORTH)


def test_what_was_added_is_there_until_it_is_removed(registry, row, tmp_path):
    assert registry.rows() == []
    registry.add(row, tmp_path / "made.onnx")
    assert registry.rows() == [row]
    assert [expert.path.read_bytes() for expert in registry.experts()] == [b"a graph"]
    registry.remove("small")
    assert registry.experts() == ()


def test_a_name_is_taken_once(registry, row, tmp_path):
    registry.add(row, tmp_path / "made.onnx")
    with pytest.raises(ExpertError, match="there is an expert small"):
        registry.add(row, tmp_path / "made.onnx")
    assert registry.rows() == [row]


@pytest.mark.parametrize("name", ["other", "../work", ""])
def test_only_an_expert_is_removed(registry, row, tmp_path, name):
    registry.add(row, tmp_path / "made.onnx")
    with pytest.raises(ExpertError, match=r"no expert is called .*: small"):
        registry.remove(name)
    assert (tmp_path / "made.onnx").is_file()


def test_a_damaged_file_is_told_of(registry, row, tmp_path):
    registry.add(row, tmp_path / "made.onnx")
    (tmp_path / "experts" / "small" / "expert.onnx").write_bytes(b"another")
    with pytest.raises(ExpertError, match=r"small .* is damaged: remove it, and add it anew"):
        registry.experts()


# `forgewatch expert` on a real memory: what is added is priced first; what is refused leaves nothing.
@pytest.fixture
def stack(tmp_path, memory_settings, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name, value in {
        "MEMORY_DATABASE_URL": memory_settings.database_url,
        "MEMORY_CROPS_URL": memory_settings.crops_url,
        "UPDATER_WORK_DIR": str(tmp_path / "work"),
    }.items():
        monkeypatch.setenv(f"FORGEWATCH_{name}", value)


@pytest.fixture
def add(stack, checkpoint):
    def add(name="small", *more, path=None, logits=1):
        path = path or checkpoint(logits)[0]
        given = ["--checkpoint", str(path), "--architecture", NAME, "--licence", "MIT", "--yes", *more]
        return main(["expert", "add", name, *given])

    return add


def listed(capsys):
    assert main(["expert", "list", "--json"]) == 0
    return json.loads(capsys.readouterr().out.splitlines()[-1])


@pytest.mark.slow
def test_an_expert_is_added_with_its_worth_listed_and_removed(add, remember, capsys):
    remember("real", 30)
    remember("blocky", 30)
    assert add() == 0
    assert "s of one core an image beside the detector's" in capsys.readouterr().out
    (row,) = listed(capsys)
    assert row["contract"]["licence"] == "MIT"
    assert row["worth"]["everywhere"]["reals"] > 0
    assert row["worth"]["seconds"] > 0
    assert add() == 1
    assert "there is an expert small" in capsys.readouterr().err
    assert main(["expert", "remove", "small"]) == 0
    assert listed(capsys) == []


@pytest.mark.slow
def test_it_asks_first_and_no_is_an_answer(stack, checkpoint, remember, capsys, monkeypatch):
    remember("real", 30)
    remember("blocky", 30)

    def no(text, **how):
        raise typer.Abort

    monkeypatch.setattr(typer, "confirm", no)
    path, _ = checkpoint()
    given = ["--checkpoint", str(path), "--architecture", NAME, "--licence", "MIT"]
    assert main(["expert", "add", "small", *given]) == 130
    assert listed(capsys) == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "more", "logits", "code", "said"),
    [
        ("small", (), 1000, 1, "a head of 1000 classes"),
        ("Small", (), 1, 1, "is no name of an expert"),
        ("small", ("--input", "resize"), 1, 1, "the memory keeps none: set FORGEWATCH_MEMORY_PICTURE_PX"),
        ("small", ("--input", "whole"), 1, 2, "choose of crop, resize"),
        ("small", ("--mean", "123,117,104"), 1, 2, "three numbers of 0..1 are wanted"),
        ("small", ("--architecture", "test_resnet"), 1, 1, "does not fit the network"),
    ],
)
def test_what_does_not_fit_is_one_line_and_no_more(add, remember, capsys, name, more, logits, code, said):
    remember("real", 30)
    remember("blocky", 30)
    assert add(name, *more, logits=logits) == code
    told = capsys.readouterr().err
    assert said in told
    assert len(told.splitlines()) == 1
    assert listed(capsys) == []


@pytest.mark.slow
def test_an_empty_memory_is_told_of(add, capsys):
    assert add() == 1
    assert "holds back no labelled item" in capsys.readouterr().err


@pytest.mark.slow
def test_an_expert_is_trained_from_the_command_line_and_can_be_added_as_it_is(
    stack, folders, remember, tmp_path, capsys, monkeypatch
):
    remember("real", 30)
    remember("blocky", 30)
    out = tmp_path / "trained.safetensors"
    trained = ["expert", "train", str(folders("a", "b")), "--out", str(out), "--architecture", NAME]
    assert main([*trained, "--steps", "2", "--px", "64", "--device", "cpu"]) == 0
    assert "held back, never trained on" in capsys.readouterr().out
    monkeypatch.setattr("updater.experts.registry.worth_of", lambda *of: WORTH)
    assert main(["expert", "add", "own", "--checkpoint", str(out), "--licence", "MIT", "--yes"]) == 0
