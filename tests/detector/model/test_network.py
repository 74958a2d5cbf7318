import numpy as np
import pytest
import timm
import torch

from detector.features.cell_traces import CELL_WIDTH, FrameFeatures, paired_edges
from detector.model.backbone import BackboneError, architecture_of, make_backbone
from detector.model.export import ExportError, export_proven, run
from detector.model.network import Network, ResidualFrontEnd
from detector.model.scanner import Scanner, ScannerGraph, median, over_time
from detector.release.crop_graphs import FRAME_SCORE, ScanContract
from detector.release.manifest import Architecture
from detector.release.tensors import TensorsError
from detector.serving.session import Session

SMALL = Architecture(backbone="lcnet_035", crop_px=64, width=8)


def pool(*rows):
    return torch.tensor(rows)


@pytest.mark.parametrize(
    "architecture",
    [
        SMALL,
        SMALL.model_copy(update={"forensic": False}),
        SMALL.model_copy(update={"backbone": "resnet10t"}),
        SMALL.model_copy(update={"backbone": "test_vit"}),
    ],
    ids=lambda a: f"{a.backbone}-{a.forensic}",
)
def test_any_timm_backbone_gives_outputs_of_the_stated_shapes(architecture):
    side = 160 if architecture.backbone == "test_vit" else 64
    architecture = architecture.model_copy(update={"crop_px": side})
    network = Network(architecture, classes=4).eval()
    with torch.no_grad():
        out = network(torch.rand(3, 3, side, side) * 255, pool([0.5, 0.5, 0.0], [0.0, 0.0, 1.0]))
    assert out.logits.shape == (2, 4)
    assert out.pseudo_logit.shape == (2,)
    assert out.embedding.shape == (2, network.embedding_size)
    assert (out.features.shape[1] > 0) == architecture.forensic


def test_a_pool_is_the_mean_of_its_crops_before_the_head():
    network = Network(SMALL, classes=3).eval()
    crops = torch.rand(3, 3, 64, 64, generator=torch.Generator().manual_seed(0)) * 255
    with torch.no_grad():
        out = network(crops, pool([0.25, 0.75, 0.0]))
        seen = network.backbone(network.front(crops))
        assert network.forensics is not None
        features = network.forensics(crops)
        weights = pool([0.25, 0.75, 0.0])
        apart = network.classify(weights @ seen, weights @ features)
    assert torch.allclose(out.logits, apart.logits, atol=1e-5)
    assert torch.allclose(out.features[0], 0.25 * features[0] + 0.75 * features[1], atol=1e-4)


def test_crops_outside_a_pool_do_not_touch_it():
    network = Network(SMALL, classes=3).eval()
    crops = torch.rand(2, 3, 64, 64, generator=torch.Generator().manual_seed(1)) * 255
    other = crops.clone()
    other[1] = 255 - other[1]
    with torch.no_grad():
        first, second = (network(c, pool([1.0, 0.0])).logits for c in (crops, other))
    assert torch.allclose(first, second, atol=1e-5)


def test_gradients_reach_every_parameter_from_the_joint_logits():
    network = Network(SMALL, classes=3).train()
    crops = torch.rand(4, 3, 64, 64) * 255
    out = network(crops, torch.eye(4))
    joint = torch.cat([out.logits, out.pseudo_logit[:, None]], 1)
    torch.nn.functional.cross_entropy(joint, torch.tensor([0, 1, 2, 3])).backward()
    assert [name for name, p in network.named_parameters() if p.grad is None] == []


def test_the_front_end_cuts_the_scene_away_and_keeps_the_last_bits():
    front = ResidualFrontEnd()
    ramp = torch.arange(64.0)[None, None, None].expand(1, 3, 64, 64)
    cut = front(ramp)
    assert cut.shape == (1, front.channels, 64, 64)
    inside = cut[0, :, 4:-4, 4:-4]
    assert torch.allclose(inside[1], torch.zeros_like(inside[1]), atol=1e-6), "a ramp has no second residual"
    assert front(ramp * 100)[0, 0].abs().max() == 1, "residuals are clipped"


def test_a_network_without_a_backbone_reads_forensic_features_alone():
    network = Network(Architecture(backbone="none", crop_px=64, width=16), 3).eval()
    crops = torch.rand(2, 3, 64, 64) * 255
    with torch.no_grad():
        output = network(crops, torch.eye(2))
    assert output.embedding.shape == (2, 16)
    assert output.logits.shape == (2, 3)


def test_a_network_must_read_something():
    with pytest.raises(ValueError, match="a backbone or forensic features"):
        Architecture(backbone="none", forensic=False)


CLIP = "vit_base_patch16_clip_224.openai"


def test_a_new_network_is_shown_pixels_as_timm_says_that_its_backbone_was():
    clip = architecture_of(CLIP)
    assert clip.mean == pytest.approx([255 * one for one in (0.48145466, 0.4578275, 0.40821073)])
    assert clip.deviation == pytest.approx([255 * one for one in (0.26862954, 0.26130258, 0.27577711)])
    assert architecture_of("test_vit").mean == (127.5,) * 3
    assert architecture_of("lcnet_050").mean == pytest.approx((123.675, 116.28, 103.53))
    assert architecture_of("none", crop_px=64) == Architecture(crop_px=64)


@pytest.mark.parametrize("forensic", [True, False])
def test_the_backbone_is_given_the_mean_as_0_and_a_deviation_more_as_1(forensic):
    architecture = Architecture(
        backbone="lcnet_035", forensic=forensic, crop_px=64, mean=(10, 20, 30), deviation=(1, 2, 4)
    )
    front = Network(architecture, 2).front
    grey = torch.tensor([11.0, 22.0, 34.0])[None, :, None, None].expand(1, 3, 64, 64)
    assert torch.equal(front(grey)[:, -3:], torch.ones(1, 3, 64, 64))
    without = Network(architecture.model_copy(update={"mean": None, "deviation": None}), 2).front
    middle = 127.5 if forensic else 103.53
    assert without(torch.full((1, 3, 64, 64), middle))[0, -1, 9, 9] == pytest.approx(0, abs=1e-6)


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("resnet18x", "resnet18x is no model that timm knows: resnet18"),
        ("hf_hub:timm/resnet18", "is no model that timm knows"),
        ("hf-hub:timm/resnet18", "is no model that timm knows"),
        ("lcnet_050.nothing", "timm knows no weights nothing of lcnet_050: lcnet_050.ra2_in1k"),
        ("inception_v3", "cannot be made for images of 64 px"),
    ],
)
def test_a_backbone_that_cannot_be_made_is_one_line(name, told):
    with pytest.raises(BackboneError, match=told) as error:
        make_backbone(name, 3, 64)
    assert "\n" not in str(error.value)


def test_what_a_backbone_begins_with_is_what_timm_draws():
    torch.manual_seed(3)
    made, width = make_backbone("lcnet_035", 12, 64)
    torch.manual_seed(3)
    own = timm.create_model("lcnet_035", pretrained=False, in_chans=12, num_classes=0)
    assert width == own.eval()(torch.zeros(1, 12, 64, 64)).shape[1]
    assert all(torch.equal(value, own.state_dict()[name]) for name, value in made.state_dict().items())


# The head over time, where a clip is its own reference; and the graph of it, in parts or whole.
WIDTH = 6 + CELL_WIDTH


def a_scanner():
    torch.manual_seed(0)
    return Scanner(WIDTH).eval()


def test_the_median_is_numpys_for_clips_of_every_length():
    for frames in (1, 2, 5, 8):
        features = torch.randn(frames, 3)
        assert torch.allclose(median(features)[0], torch.from_numpy(np.median(features.numpy(), 0)))


def test_a_frame_is_seen_beside_its_own_clip():
    features = torch.randn(20, WIDTH)
    seen = over_time(features)
    elsewhere = features + 5 * torch.randn(1, WIDTH)
    assert torch.allclose(seen, over_time(elsewhere), atol=1e-4)
    assert torch.allclose(seen[:, 6:], paired_edges(features[:, 6:]))


def test_a_clip_says_the_same_beside_a_longer_one():
    scanner = a_scanner()
    short, long = torch.randn(9, WIDTH), torch.randn(31, WIDTH)
    inputs, inside = torch.zeros(2, 31, len(scanner.mean)), torch.zeros(2, 31)
    inputs[0, :9], inputs[1] = (scanner.standard(over_time(clip)) for clip in (short, long))
    inside[0, :9] = inside[1] = 1
    scores = torch.stack([member(inputs, inside).sigmoid() for member in scanner.members]).mean(0)
    assert torch.allclose(scores[0, :9], scanner(short)["frame_score"], atol=1e-6)
    assert torch.allclose(scores[1], scanner(long)["frame_score"], atol=1e-6)


PX = 64
FEATURES = FrameFeatures(PX)
DECLARED = ScanContract(crop_px=PX, threshold=0.3, reals_told=0.05, reals=40)


def _clip(frames, seed=0):
    """A smooth scene under noise, which is stronger in some frames."""
    rng = np.random.default_rng(seed)
    scene = rng.integers(0, 256, (PX // 8, PX // 8, 3)).repeat(8, 0).repeat(8, 1)
    levels = rng.choice([2.0, 8.0], (frames, 1, 1, 1))
    return {"crops": np.clip(scene + levels * rng.normal(size=(frames, PX, PX, 3)), 0, 255).astype(np.uint8)}


@pytest.fixture(scope="module")
def scanner():
    torch.manual_seed(0)
    made = Scanner(FEATURES.width).eval()
    made.standardise(over_time(_features(_clip(12))))
    for member in made.members:
        member.end.weight.data *= 8
    return made


@pytest.fixture(scope="module")
def exported(scanner, tmp_path_factory):
    path = tmp_path_factory.mktemp("scanner") / "scanner.onnx"
    return path, export_proven(ScannerGraph(scanner, PX), DECLARED, path, [_clip(3), _clip(9)])


def _features(clip):
    with torch.inference_mode():
        return FEATURES(torch.from_numpy(clip["crops"]).permute(0, 3, 1, 2).float())


@pytest.mark.slow
def test_clips_of_any_length_are_scored_as_torch_scores_their_features(scanner, exported):
    path, contract = exported
    assert contract.export_difference < 1e-4
    assert contract.features == FEATURES.width
    session = Session(path, contract, threads=1)
    for frames in (1, 2, 4, 5, 96):
        clip = _clip(frames, seed=frames)
        answer = session.score(clip)
        with torch.inference_mode():
            wanted = scanner(_features(clip))["frame_score"].numpy()
        assert answer[FRAME_SCORE].shape == (frames,)
        assert contract.differences(answer, {FRAME_SCORE: wanted})[FRAME_SCORE] < 1e-4
    assert np.ptp(answer[FRAME_SCORE]) > 0.05


@pytest.mark.slow
def test_an_export_that_says_something_else_is_refused(scanner, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "detector.model.export.run",
        lambda graph, request: {name: value + 1 for name, value in run(graph, request).items()},
    )
    with pytest.raises(ExportError, match="frame_score differs by"):
        export_proven(ScannerGraph(scanner, PX), DECLARED, tmp_path / "x.onnx", [_clip(3), _clip(9)])


@pytest.mark.slow
def test_a_proof_needs_clips_of_several_lengths(scanner, tmp_path):
    with pytest.raises(ValueError, match="several sizes"):
        export_proven(ScannerGraph(scanner, PX), DECLARED, tmp_path / "x.onnx", [_clip(3), _clip(3)])


def test_a_scanner_of_other_features_is_refused():
    with pytest.raises(ValueError, match="a scanner of other features"):
        ScannerGraph(Scanner(6 + CELL_WIDTH), PX)


@pytest.mark.slow
@pytest.mark.parametrize(
    "wrong",
    [
        {"crops": np.zeros((2, 32, 32, 3), np.uint8)},
        {"crops": np.zeros((2, PX, PX, 3), np.float32)},
        {"crops": np.zeros((0, PX, PX, 3), np.uint8)},
        {"before": np.zeros((2, FEATURES.width), np.float32)},
    ],
)
def test_a_request_that_is_not_of_the_contract_is_refused_in_one_line(exported, wrong):
    path, contract = exported
    with pytest.raises(TensorsError) as refused:
        Session(path, contract, threads=1).score({**_clip(2), **wrong})
    assert "\n" not in str(refused.value)
