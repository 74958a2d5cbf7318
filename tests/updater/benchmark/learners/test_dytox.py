import math
from dataclasses import replace

import numpy as np
import pytest
import timm
import torch
from safetensors.torch import save_file

from detector.model.export import export, prove_equal
from detector.model.graph import DetectorGraph
from detector.model.network import Network
from detector.model.scores import NetworkOutput
from detector.release.artifact import EVALUATION, MODEL, MODEL_CARD, PROBE, WEIGHTS, load, seal
from detector.release.contract import crops_and_pooling
from detector.release.manifest import Architecture, GateParameters, Manifest, Term
from detector.serving.session import Session
from ingest.records import CropPlan
from updater.benchmark.learners import dytox
from updater.benchmark.learners.methods import LEARNERS, load_learnt, save_learnt
from updater.benchmark.learners.task_tokens import (
    PatchTokens,
    TaskAttention,
    TaskHeads,
    TaskTokens,
    grow_network,
    make_network,
)
from updater.candidate.plan import CandidateRefusedError, load_parent
from updater.training import two_stages
from updater.training.loop import Batch, training_set
from updater.training.step import FIRST, Options, Step, TrainedModel
from updater.training.weights import Weights, put

TINY = Architecture(backbone="lcnet_035", crop_px=64, width=8)
RECIPE = replace(FIRST, backbone_steps=3, balanced_steps=3, batch=8, pseudo_share=0.25)
OLD = ("a/real", "a/blocky")
CLASSES = (*OLD, "b/real", "b/striped")


def test_task_attention_by_hand():
    torch.manual_seed(0)
    block, width, heads = TaskAttention(8), 8, 4
    tokens, patches = torch.randn(2, width), torch.randn(3, 5, width)
    answers = block(tokens, patches)
    for task in range(2):
        token = tokens[task].expand(3, 1, width)
        z = block.before(torch.cat([token, patches], 1))
        q, k, v = (
            (of.weight @ z.mT).mT.reshape(3, 6, heads, 2) for of in (block.query, block.key, block.value)
        )
        scores = torch.einsum("mhd,mphd->mhp", q[:, 0], k) / math.sqrt(width / heads)
        share = scores.exp() / scores.exp().sum(2, keepdim=True)
        read = torch.einsum("mhp,mphd->mhd", share, v).reshape(3, width)
        asked = token[:, 0] + read @ block.out.weight.T + block.out.bias
        assert torch.allclose(answers[:, task], asked + block.mlp(block.between(asked)), atol=1e-5)


def test_no_task_sees_anothers_token():
    block, tokens, patches = TaskAttention(8), torch.randn(3, 8), torch.randn(2, 4, 8)
    assert torch.allclose(block(tokens, patches)[:, :2], block(tokens[:2], patches), atol=1e-5)


@pytest.mark.parametrize(("tasks", "count"), [([(0, 2), (2, 5)], 5), ([(0, 2), (0, 2)], 2)])
def test_the_classifiers_as_one_matrix_say_the_same(tasks, count):
    heads = TaskHeads(4, 3, tasks)
    embedding = torch.randn(6, 11)
    wanted = torch.zeros(6, count)
    for number, (first, end) in enumerate(tasks):
        part = torch.cat([embedding[:, 4 * number : 4 * number + 4], embedding[:, 8:]], 1)
        wanted[:, first:end] += heads.parts[number](part)
    assert torch.allclose(heads(embedding), wanted, atol=1e-5)
    torch.autograd.backward(heads(embedding).square().sum())
    assert all((parameter.grad != 0).all() for parameter in heads.parameters())


def test_tokens_are_the_positions_of_the_last_map():
    class Map(torch.nn.Module):
        def forward_features(self, images):
            return images

    images = torch.randn(2, 3, 2, 2)
    rows = PatchTokens(Map(), 3)(images).reshape(2, 4, 3)
    assert torch.equal(rows[:, 1], images[:, :, 0, 1])
    assert torch.equal(PatchTokens(Map(), 3)(images.flatten(2).mT).reshape(2, 4, 3), rows)


@pytest.mark.parametrize("forensic", [True, False])
def test_growing_leaves_the_old_logits_as_they_were(forensic):
    old = TaskTokens(TINY.model_copy(update={"forensic": forensic}), [(0, 2)]).eval()
    new = grow_network(old, [(0, 2), (2, 5)]).eval()
    crops = torch.rand(3, 3, 64, 64) * 255
    with torch.no_grad():
        before, after = (network(crops, torch.eye(3)) for network in (old, new))
    assert after.logits.shape == (3, 5)
    assert torch.allclose(after.logits[:, :2], before.logits, atol=1e-5)
    assert torch.allclose(after.pseudo_logit, before.pseudo_logit, atol=1e-5)
    assert after.embedding.shape[1] == before.embedding.shape[1] + 8


# What CDDB's tree of DyTox makes of three items, and how that would move the first one's logits.
LOGITS = torch.tensor([[2.0, -1.0, 0.5, 1.0], [-0.3, 0.8, 1.2, -2.0], [0.1, 0.4, -0.6, 1.5]])
TEACHER = torch.tensor([[1.0, -0.5], [0.2, 0.9], [-1.0, 0.3]])


@pytest.mark.parametrize(
    ("scheme", "released", "gradient"),
    [
        ("mc", 0.317219, [0.006283, -4.4e-05, 0.025936, 0.030461]),
        ("sumlog", 0.31568, [0.003866, 0.005449, 0.005779, 0.02458]),
        ("sumlogit-twice", 0.429908, [0.006975, -0.001159, 0.016368, 0.02357]),
        ("sumfeat-twice", 0.450273, [0.007534, -0.002101, 0.01762, 0.022627]),
        ("max-twice", 0.436254, [0.006328, -0.003406, 0.018155, 0.024583]),
    ],
)
def test_the_loss_is_that_of_the_published_code(scheme, released, gradient, labelled, monkeypatch):
    chosen = Options(exposure="none") if scheme == "mc" else Options("mt", scheme, exposure="none")
    recipe, items = replace(RECIPE, label_smoothing=0.0), labelled(dict.fromkeys(("a/real", *CLASSES[2:]), 1))
    step = Step(items, CLASSES, TINY, TrainedModel(TaskTokens(TINY, [(0, 2)]), OLD), chosen, recipe)
    network, target, logits = dytox.start(step), torch.tensor([0, 2, 3]), LOGITS.clone().requires_grad_()
    network.divergence = None
    monkeypatch.setattr(dytox, "teacher_output", lambda *_: lambda of: of.output._replace(logits=TEACHER))
    output = NetworkOutput(logits, torch.zeros(3), torch.zeros(3, network.embedding_size), torch.zeros(3, 0))
    loss = dytox._loss(step, network, training_set(step, network))
    value = loss(Batch(output, torch.arange(3), target, target))
    torch.autograd.backward(value)
    assert value.item() == pytest.approx(released, abs=2e-6)
    assert logits.grad[0].tolist() == pytest.approx(gradient, abs=2e-6)


def test_the_divergence_tells_new_classes_from_one_another_and_from_all_that_is_past(labelled):
    previous = TrainedModel(TaskTokens(TINY, [(0, 2)]), OLD)
    step = Step(labelled({"a/blocky": 1, "b/striped": 2, "b/real": 1}), CLASSES, TINY, previous)
    labels = dytox.past_or_new(step, 6)
    assert labels.tolist() == [0, 2, 2, 1, -100, -100]
    network = dytox.start(step)
    embedding = torch.randn(6, network.embedding_size, requires_grad=True)
    value = dytox.divergence(network, embedding, labels)
    scores = network.divergence(embedding[:4, 8:16])
    wanted = torch.tensor([[1.0, 0, 0], [0, 0, 1], [0, 0, 1], [0, 1, 0]])
    by_hand = -(wanted * scores.sigmoid().log() + (1 - wanted) * (1 - scores.sigmoid()).log()).mean()
    assert value.item() == pytest.approx(by_hand.item(), rel=1e-5)
    torch.autograd.backward(value)
    assert (embedding.grad[:4, 8:16] != 0).any(1).all(), "the newest task's part"
    assert (embedding.grad[:, :8] == 0).all()
    assert (embedding.grad[4:] == 0).all(), "pseudo-forgeries have no class"
    assert dytox.divergence(network, embedding[4:], labels[4:]).item() == 0


@pytest.mark.parametrize("scheme", ["mc", "bc"])
def test_an_update_adds_a_token_and_keeps_the_old_one(scheme, labelled):
    options = Options(scheme=scheme)
    first = dytox.learn(Step(labelled(dict.fromkeys(OLD, 4)), OLD, TINY, options=options, recipe=RECIPE))
    train = labelled(dict.fromkeys(CLASSES, 3), seed=1)
    on_crops = replace(RECIPE, balanced_steps=0)
    second = dytox.learn(Step(train, CLASSES, TINY, first, options, on_crops, seed=1))
    assert all(same(old, first.network, second.network) for old in ("tokens.0", "norms.0", "head.parts.0"))
    assert not same("attention.out", first.network, second.network)
    assert not same("backbone", first.network, second.network)
    assert second.network.head.tasks == (((0, 2), (0, 2)) if scheme == "bc" else ((0, 2), (2, 4)))
    assert second.network.divergence is None
    same_classes = Step(train, CLASSES, TINY, second, options, replace(RECIPE, backbone_steps=0), seed=2)
    assert len(dytox.learn(same_classes).network.tokens) == 2, "a step without new classes brings no token"


def same(prefix, one, other):
    there = other.state_dict()
    named = {name: value for name, value in one.state_dict().items() if name.startswith(prefix)}
    assert named
    return all(torch.equal(value, there[name]) for name, value in named.items())


def test_the_balanced_stage_frees_what_the_earlier_tasks_have_and_keeps_the_backbone(labelled, monkeypatch):
    first = dytox.learn(Step(labelled(dict.fromkeys(OLD, 4)), OLD, TINY, recipe=RECIPE))
    train = labelled(dict.fromkeys(CLASSES, 3), seed=1)
    second = dytox.learn(Step(train, CLASSES, TINY, first, recipe=replace(RECIPE, backbone_steps=0), seed=1))
    assert same("backbone", first.network, second.network)
    old = ("tokens.0", "norms.0", "head.parts.0")
    assert not any(same(name, first.network, second.network) for name in old)


def test_it_goes_on_only_from_its_own(labelled):
    step = Step(labelled(dict.fromkeys(CLASSES, 2)), CLASSES, TINY, TrainedModel(Network(TINY, 2), OLD))
    with pytest.raises(ValueError, match="network of its own"):
        dytox.learn(step)
    cosine = TINY.model_copy(update={"head": "cosine"})
    with pytest.raises(ValueError, match="linear head"):
        dytox.learn(Step(labelled(dict.fromkeys(OLD, 2)), OLD, cosine))
    bare = TINY.model_copy(update={"backbone": "none"})
    with pytest.raises(ValueError, match="no last feature map"):
        dytox.learn(Step(labelled(dict.fromkeys(OLD, 2)), OLD, bare))


# A network of task tokens as a release: exported, sealed, read back, and refused by an update.
CONVIT = Architecture(backbone="convit_tiny", crop_px=64, width=192, forensic=False)
PLAIN = Architecture(backbone="lcnet_035", crop_px=64, width=8, forensic=False)
SERVED_RECIPE = replace(FIRST, backbone_steps=1, balanced_steps=2, batch=4, pseudo_share=0.25)
SERVED_OLD = ("real", "blocky")
SERVED_CLASSES = (*SERVED_OLD, "striped")
OF_THE_LOGITS = {name: Term(median=0, scale=1, weight=1) for name in ("energy", "pseudo")}
GATE = GateParameters(terms=OF_THE_LOGITS, clip=50, unknown_threshold=0, fake_threshold=0.5)


@pytest.fixture(scope="module", params=[CONVIT, PLAIN], ids=lambda one: one.backbone)
def learnt(request, labelled):
    """Two tasks learnt, one after the other."""
    first = Step(labelled(dict.fromkeys(SERVED_OLD, 3)), SERVED_OLD, request.param, recipe=SERVED_RECIPE)
    items, known = labelled(dict.fromkeys(SERVED_CLASSES, 3)), dytox.learn(first)
    return dytox.learn(Step(items, SERVED_CLASSES, request.param, known, recipe=SERVED_RECIPE))


def test_joint_training_is_one_task_of_all_classes_whatever_was_learnt_before(learnt, labelled):
    classes = (*SERVED_CLASSES, "posterised")
    architecture = learnt.network.architecture.model_copy(update={"tasks": None})
    step = Step(labelled(dict.fromkeys(classes, 2)), classes, architecture, learnt, recipe=SERVED_RECIPE)
    joint, alone = LEARNERS["dytox-joint"](step).network, dytox.learn(replace(step, previous=None)).network
    assert joint.architecture.tasks == ((0, 4),)
    assert dytox.learn(step).network.architecture.tasks == ((0, 2), (2, 3), (3, 4))
    assert all(torch.equal(value, alone.state_dict()[name]) for name, value in joint.state_dict().items())


def asked(crops, rows):
    rng = np.random.default_rng(crops)
    pooling = rng.random((rows, crops)).astype(np.float32)
    return {
        "crops": rng.integers(0, 256, (crops, 64, 64, 3), dtype=np.uint8),
        "pooling": pooling / pooling.sum(1, keepdims=True),
    }


@pytest.fixture
def release(learnt, tmp_path):
    graph = DetectorGraph(learnt.network, GATE, None)
    contract = export(graph, crops_and_pooling(CropPlan(crop_px=64)), tmp_path / MODEL)
    differences = prove_equal(
        graph, tmp_path / MODEL, contract, [asked(1, 1), asked(7, 3), asked(5, 12), asked(9, 2)]
    )
    save_file(learnt.network.state_dict(), tmp_path / WEIGHTS)
    for name in (PROBE, EVALUATION, MODEL_CARD):
        (tmp_path / name).touch()
    draft = Manifest(
        classes=SERVED_CLASSES,
        architecture=learnt.network.architecture,
        contract=contract,
        feature_version=None,
        gate=GATE,
        reference=(),
        parent=None,
        calibration={},
        export_differences=differences,
    )
    seal(tmp_path, draft)
    return load(tmp_path)


def test_what_is_served_says_what_was_learnt(learnt, release):
    request = asked(6, 4)
    crops = torch.from_numpy(request["crops"]).permute(0, 3, 1, 2).float()
    with torch.no_grad():
        wanted = learnt.network(crops, torch.from_numpy(request["pooling"]))
    served = Session(release.folder / MODEL, release.manifest.contract, threads=1).score(request)
    assert np.allclose(served["logits"], wanted.logits, atol=1e-4)
    assert release.manifest.architecture.tasks == ((0, 2), (2, 3))


def test_a_network_is_gone_on_from_by_dytox_and_refused_by_the_others(learnt, release, labelled):
    more = (*SERVED_CLASSES, "posterised")
    step = Step(
        labelled(dict.fromkeys(more, 2)), more, release.manifest.architecture, learnt, recipe=SERVED_RECIPE
    )
    assert dytox.learn(step).network.architecture.tasks == ((0, 2), (2, 3), (3, 4))
    with pytest.raises(ValueError, match="only dytox goes on from it"):
        two_stages.learn(step)
    with pytest.raises(CandidateRefusedError, match="task tokens"):
        load_parent(release)


def test_tasks_that_speak_for_another_number_of_classes_are_refused(learnt):
    with pytest.raises(ValueError, match="speak for 3 logits, and there are 4 classes"):
        make_network(learnt.network.architecture, 4)


def test_a_file_of_it_is_read_back(learnt, tmp_path):
    save_learnt(tmp_path / "learnt.safetensors", learnt)
    found = load_learnt(tmp_path / "learnt.safetensors", torch.device("cpu"))
    assert isinstance(found.network, TaskTokens)
    assert found.network.architecture == learnt.network.architecture
    state = found.network.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in learnt.network.state_dict().items())


def test_a_convit_of_its_own_width_is_read_as_in_the_paper_and_takes_its_published_weights():
    network = TaskTokens(CONVIT, [(0, 2)])
    heads = timm.create_model("convit_tiny", img_size=64, num_classes=0).blocks[0].attn.num_heads
    # Eight of its blocks, sixteen places of 64 px, no class token, no projection, its heads, an MLP of 4 D.
    assert len(network.backbone.whole.blocks) == 8
    assert network.backbone(torch.zeros(2, 3, 64, 64)).shape == (2, 16 * 192)
    assert not list(network.project.parameters())
    assert network.attention.heads == heads
    assert network.attention.mlp[0].out_features == 4 * 192
    given = timm.create_model("convit_tiny", img_size=64).state_dict()
    put(network, Weights("timm's convit_tiny", given), SERVED_OLD)
    found = network.backbone.whole.state_dict()
    assert torch.equal(found["blocks.7.mlp.fc1.weight"], given["blocks.7.mlp.fc1.weight"])
    torch.autograd.backward(network(torch.rand(2, 3, 64, 64), torch.eye(2)).logits.sum())
    assert [
        name for name, value in network.named_parameters() if value.requires_grad and value.grad is None
    ] == ["pseudo_head.weight", "pseudo_head.bias"]
