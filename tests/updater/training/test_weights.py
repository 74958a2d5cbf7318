"""What the first network of a stream begins with: weights from a file, or one line that says why not."""

import math

import httpx
import pytest
import timm
import torch
from safetensors.torch import save_file

from detector.model.backbone import BackboneError, architecture_of
from detector.model.network import Network
from detector.release.manifest import Architecture
from updater.benchmark.continual.setup import without_head
from updater.benchmark.learners import dytox
from updater.benchmark.learners.methods import save_learnt
from updater.training import two_stages
from updater.training.loop import start
from updater.training.losses import classification
from updater.training.step import FIRST, Step, TrainedModel
from updater.training.weights import Weights, WeightsError, put, read_weights, timm_weights

TINY = Architecture(backbone="lcnet_035", crop_px=64, width=8)
CLASSES = ("a/real", "a/blocky")


def network(architecture=TINY, classes=2, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return Network(architecture, classes)


def of_timm(**options):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        return timm.create_model("lcnet_035", pretrained=False, **options)


def written(path, state, metadata=None):
    save_file({name: value.contiguous() for name, value in state.items()}, path, metadata)
    return path


@pytest.fixture(scope="module")
def items(labelled):
    return labelled({"a/real": 5, "a/blocky": 5})


def a_step(items, weights, architecture=TINY, classes=CLASSES):
    return Step(items, classes, architecture, recipe=FIRST, start_from=weights)


def same(one, other):
    return all(torch.equal(value, other[name]) for name, value in one.items())


def test_a_backbones_own_weights_are_what_the_first_network_begins_with_that_of_dytox_too(items, tmp_path):
    given = of_timm(in_chans=12, num_classes=0).state_dict()
    weights = read_weights(written(tmp_path / "w.safetensors", given))
    assert not weights.whole
    assert same(given, start(a_step(items, weights)).backbone.state_dict())
    assert same(given, dytox.start(a_step(items, weights)).backbone.whole.state_dict())


@pytest.mark.parametrize("name", ["lcnet_035", "test_vit", "test_convnext"])
def test_beside_residuals_a_backbone_begins_by_saying_of_a_picture_what_its_weights_say(name, tmp_path):
    torch.manual_seed(5)
    published = timm.create_model(name, pretrained=False).eval()  # RGB, a thousand classes
    weights = read_weights(written(tmp_path / "w.safetensors", published.state_dict()))
    mine = network(architecture_of(name, crop_px=160, width=8)).eval()
    assert mine.front.channels == 12
    put(mine, weights, CLASSES)
    shown = timm.data.resolve_data_config(model=published)
    mean, std = (torch.tensor(shown[one])[:, None, None] for one in ("mean", "std"))
    pictures = 255 * torch.rand(2, 3, 160, 160)
    published.reset_classifier(0)
    with torch.no_grad():
        said = mine.backbone(mine.front(pictures))
        wanted = published((pictures / 255 - mean) / std)
    assert torch.allclose(said, wanted, atol=1e-3 * float(wanted.std()))
    assert wanted.std() > 0


@pytest.mark.parametrize(
    ("name", "side", "prefix"), [("test_vit", 64, 1), ("convit_tiny", 128, 0), ("volo_d1_224", 128, None)]
)
def test_position_embeddings_are_resized_to_the_crops(name, side, prefix, tmp_path):
    torch.manual_seed(5)
    published = timm.create_model(name, pretrained=False).state_dict()
    published["pos_embed"] = torch.randn(published["pos_embed"].shape)
    mine = network(architecture_of(name, crop_px=side, width=8))
    put(mine, read_weights(written(tmp_path / "w.safetensors", published)), CLASSES)
    found = mine.backbone.state_dict()
    places = found["pos_embed"].shape[1]
    grid = [places if prefix is None else math.isqrt(places)] * 2
    if prefix is None:
        wanted = timm.layers.resample_abs_pos_embed_nhwc(published["pos_embed"], grid)
    else:
        wanted = timm.layers.resample_abs_pos_embed(published["pos_embed"], grid, num_prefix_tokens=prefix)
    assert found["pos_embed"].shape != published["pos_embed"].shape
    assert torch.allclose(found["pos_embed"], wanted, atol=1e-6)
    others = [k for k, v in found.items() if k != "pos_embed" and v.shape == published[k].shape]
    assert len(others) > 0.9 * len(found)
    assert same({k: found[k] for k in others}, published)


def test_a_model_of_another_layout_is_still_refused_by_name(tmp_path):
    given = timm.create_model("test_vit", pretrained=False).state_dict()
    del given["blocks.1.mlp.fc1.weight"]
    weights = read_weights(written(tmp_path / "w.safetensors", given))
    told = r"it lacks blocks\.1\.mlp\.fc1\.weight.*name the model that it is of"
    with pytest.raises(WeightsError, match=told):
        put(network(architecture_of("test_vit", crop_px=64, width=8)), weights, CLASSES)


def test_a_whole_network_goes_on_with_its_head_and_its_scales(items, tmp_path):
    other = network(seed=7)
    other.feature_mean.fill_(3.0)
    step = a_step(items, read_weights(written(tmp_path / "weights.safetensors", other.state_dict())))
    assert same(other.state_dict(), start(step).state_dict())
    kept, own = (_scales_begun_with(one) for one in (step, Step(items, CLASSES, TINY, recipe=FIRST)))
    assert torch.equal(kept, other.feature_mean)
    assert not torch.equal(own, other.feature_mean)


def _scales_begun_with(step):
    seen = []

    def loss_of(network, data):
        seen.append(network.feature_mean.clone())
        raise InterruptedError

    with pytest.raises(InterruptedError):
        two_stages.train(step, "test", lambda network, data: loss_of(network, data) or classification)
    return seen[0]


def test_a_benchmarks_own_network_is_read_without_what_its_learner_keeps(items, tmp_path):
    other = network(seed=7)
    file = tmp_path / "0.safetensors"
    save_learnt(file, TrainedModel(other, CLASSES, {"rows.x": torch.zeros(3)}))
    weights = read_weights(file)
    assert weights.classes == CLASSES
    assert same(other.state_dict(), start(a_step(items, weights)).state_dict())


def test_other_classes_begin_with_what_is_below_the_head(tmp_path):
    other, mine = network(classes=5, seed=7), network(classes=2)
    weights = without_head(Weights("w", other.state_dict()))
    head = mine.head.weight.clone()
    put(mine, weights, CLASSES)
    assert torch.equal(mine.head.weight, head)
    assert same(other.project.state_dict(), mine.project.state_dict())
    assert without_head(weights).digest == weights.digest != Weights("w", other.state_dict()).digest


@pytest.mark.parametrize(
    ("state", "told"),
    [
        (lambda: network(classes=5).state_dict(), "a head of 5 logits, and the first task has 2"),
        (lambda: network(TINY.model_copy(update={"width": 16})).state_dict(), "does not fit the network"),
        (lambda: network(TINY.model_copy(update={"head": "cosine"})).state_dict(), "it has head.scale"),
        (lambda: network(TINY.model_copy(update={"backbone": "none"})).state_dict(), "it lacks backbone"),
        (lambda: timm.create_model("resnet10t", pretrained=False).state_dict(), "it lacks"),
        (lambda: {"x": torch.zeros(1)}, "it lacks conv_stem.weight and"),
    ],
)
def test_weights_that_do_not_fit_are_one_line_that_names_them(items, tmp_path, state, told):
    file = written(tmp_path / "w.safetensors", state())
    with pytest.raises(WeightsError, match=told) as error:
        start(a_step(items, read_weights(file)))
    assert str(file) in str(error.value)
    assert "\n" not in str(error.value)


def test_a_class_list_that_does_not_fit_is_named(items, tmp_path):
    file = tmp_path / "0.safetensors"
    save_learnt(file, TrainedModel(network(), ("b/real", "b/striped")))
    with pytest.raises(WeightsError, match="tells apart b/real, b/striped, and the first task has a/real"):
        start(a_step(items, read_weights(file)))


def test_a_backbones_weights_are_nothing_for_a_network_without_one(items):
    none = Architecture(backbone="none", crop_px=64, width=8)
    with pytest.raises(WeightsError, match="the network has none"):
        start(a_step(items, Weights("w", of_timm().state_dict()), none))


def test_a_file_that_says_or_holds_nonsense_is_one_line(tmp_path):
    file, good = tmp_path / "w.safetensors", {"x": torch.ones(2)}
    for classes in ("real, fake", "3"):
        save_file(good, file, {"classes": classes})
        with pytest.raises(WeightsError, match=r"names as its classes .* no JSON list: mend it"):
            read_weights(file)
    save_file(good, file, {"classes": '["real", "fake"]'})
    assert read_weights(file).classes == ("real", "fake")
    save_file({"x": torch.tensor([1.0, float("nan")])}, file)
    with pytest.raises(WeightsError, match="numbers in x that are none or infinite: take other weights"):
        read_weights(file)


@pytest.mark.parametrize("content", [b"", b"hello", b"\x80\x02}q\x00."])
def test_what_is_no_safetensors_file_is_one_line(tmp_path, content):
    file = tmp_path / "w.pt"
    file.write_bytes(content)
    with pytest.raises(WeightsError, match=r"w\.pt is no safetensors file") as error:
        read_weights(file)
    assert "\n" not in str(error.value)
    with pytest.raises(WeightsError, match="cannot be read"):
        read_weights(tmp_path / "absent")
    with pytest.raises(WeightsError, match="holds no tensor"):
        read_weights(written(tmp_path / "empty", {}))


def test_a_hub_that_cannot_be_reached_is_one_line(monkeypatch):
    def refuse(*names, **options):
        assert options["pretrained"]
        raise httpx.ConnectError("no route\nto the hub")

    monkeypatch.setattr(timm, "create_model", refuse)
    with pytest.raises(WeightsError, match=r"lcnet_035 cannot be had \(no route to the hub\)"):
        timm_weights("lcnet_035")
    monkeypatch.undo()
    with pytest.raises(WeightsError, match="name one"):
        timm_weights("none")
    with pytest.raises(BackboneError, match="no model that timm knows"):
        timm_weights("hf-hub:timm/lcnet_035")


def test_timms_weights_are_had_as_they_were_learnt_and_name_their_licence(monkeypatch, items):
    given, made = of_timm(num_classes=0), timm.create_model
    monkeypatch.setattr(
        timm, "create_model", lambda name, **options: given if options == WANTED else made(name, **options)
    )
    weights = timm_weights("lcnet_035")
    found = start(a_step(items, weights)).backbone.state_dict()
    assert same({k: v for k, v in given.state_dict().items() if k != "conv_stem.weight"}, found)
    assert weights.description.startswith("timm's lcnet_035 (SHA-256 ")
    assert weights.description.endswith("licence apache-2.0)")


WANTED = {"pretrained": True, "num_classes": 0}
