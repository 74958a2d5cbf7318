"""The distortions by name. To add one is a file in the folder of its group, and a line."""

from updater.distortions.capture import (
    aberration,
    defocus,
    elastic,
    gaussian_noise,
    glass_blur,
    iso_noise,
    median,
    motion_blur,
    multiplicative_noise,
    optical_distortion,
    poisson,
    sharpen,
)
from updater.distortions.capture import gaussian_blur as capture_blur
from updater.distortions.colour import (
    brightness,
    channel_shuffle,
    clahe,
    contrast,
    gamma,
    grey,
    hue,
    posterise,
    rgb_shift,
    saturation,
)
from updater.distortions.compression import (
    double_jpeg,
    h264,
    jpeg,
    jpeg2000,
    rescale,
    rescale_nearest,
    webp,
)
from updater.distortions.deeperforensics import (
    block_wise,
    color_contrast,
    color_saturation,
    gaussian_blur,
    gaussian_noise_color,
    jpeg_compression,
    video_compression,
)
from updater.distortions.distortion import LEVELS, Distortion, DistortionError, Step
from updater.distortions.transmission import (
    block_loss,
    block_shift,
    impulses,
    line_loss,
    pixel_dropout,
    row_jitter,
)

_CODED = frozenset({"compression"})
_RESAMPLED = frozenset({"resampling"})
_SMOOTH = frozenset({"smoothing"})
_NOISY = frozenset({"noise"})
_TONE = frozenset({"tone"})
_PATCHED = frozenset({"blending"})

DEEPERFORENSICS = {
    "CS": Distortion(color_saturation.apply, _TONE),
    "CC": Distortion(color_contrast.apply, _TONE),
    "BW": Distortion(block_wise.apply, _PATCHED, each_frame=True),
    "GNC": Distortion(gaussian_noise_color.apply, _NOISY, each_frame=True),
    "GB": Distortion(gaussian_blur.apply, _SMOOTH),
    "JPEG": Distortion(jpeg_compression.apply, _RESAMPLED | _SMOOTH),
    "VC": Distortion(video_compression.apply, _CODED, rate_factors=video_compression.RATE_FACTORS),
}
"""The seven, by the codes of the published metas. They are upper case; "JPEG" is not our "jpeg"."""

COMPRESSION = {
    "jpeg": Distortion(jpeg.apply, _CODED),
    "webp": Distortion(webp.apply, _CODED),
    "jpeg2000": Distortion(jpeg2000.apply, _CODED | {"spectral"}),
    "h264": Distortion(h264.apply, _CODED, rate_factors=h264.RATE_FACTORS),
    "double_jpeg": Distortion(double_jpeg.apply, _CODED),
    "rescale": Distortion(rescale.apply, _RESAMPLED | _SMOOTH),
    "rescale_nearest": Distortion(rescale_nearest.apply, _RESAMPLED | {"periodic"}),
}
TRANSMISSION = {
    "block_loss": Distortion(block_loss.apply, _PATCHED, each_frame=True),
    "block_shift": Distortion(block_shift.apply, _PATCHED, each_frame=True),
    "line_loss": Distortion(line_loss.apply, each_frame=True),
    "row_jitter": Distortion(row_jitter.apply, each_frame=True, move=row_jitter.move),
    "impulses": Distortion(impulses.apply, _NOISY, each_frame=True),
    "pixel_dropout": Distortion(pixel_dropout.apply, _NOISY, each_frame=True),
}
CAPTURE = {
    "gaussian_blur": Distortion(capture_blur.apply, _SMOOTH),
    "motion_blur": Distortion(motion_blur.apply, _SMOOTH),
    "defocus": Distortion(defocus.apply, _SMOOTH),
    "median": Distortion(median.apply, _SMOOTH),
    "glass_blur": Distortion(glass_blur.apply, _SMOOTH | _NOISY),
    "gaussian_noise": Distortion(gaussian_noise.apply, _NOISY, each_frame=True),
    "iso_noise": Distortion(iso_noise.apply, _NOISY, each_frame=True),
    "multiplicative_noise": Distortion(multiplicative_noise.apply, _NOISY, each_frame=True),
    "poisson": Distortion(poisson.apply, _NOISY, each_frame=True),
    "optical_distortion": Distortion(optical_distortion.apply, _RESAMPLED, move=optical_distortion.move),
    "elastic": Distortion(elastic.apply, _RESAMPLED, move=elastic.move),
    "sharpen": Distortion(sharpen.apply, frozenset({"sharpening"})),
    "aberration": Distortion(aberration.apply, _RESAMPLED, move=aberration.move),
}
COLOUR = {
    "brightness": Distortion(brightness.apply, _TONE),
    "contrast": Distortion(contrast.apply, _TONE),
    "gamma": Distortion(gamma.apply, _TONE),
    "saturation": Distortion(saturation.apply, _TONE),
    "hue": Distortion(hue.apply, _TONE),
    "rgb_shift": Distortion(rgb_shift.apply, _TONE),
    "channel_shuffle": Distortion(channel_shuffle.apply, _TONE),
    "grey": Distortion(grey.apply, _TONE),
    "clahe": Distortion(clahe.apply, _TONE),
    "posterise": Distortion(posterise.apply, frozenset({"quantisation"})),
}
GROUPS = {
    "compression": COMPRESSION,
    "transmission": TRANSMISSION,
    "capture": CAPTURE,
    "colour": COLOUR,
}
"""Our 36 for ForgeryNet, whose own were never published."""

FORGERYNET = COMPRESSION | TRANSMISSION | CAPTURE | COLOUR
DISTORTIONS = DEEPERFORENSICS | FORGERYNET

AUGMENTATIONS = {
    "weak": (),
    "normal": ("jpeg", "rescale", "gaussian_blur", "brightness", "gaussian_noise"),
    "enhanced": tuple(FORGERYNET),
}
"""What training with weak, normal or enhanced augmentation may distort by."""


def step(name: str, level: int) -> Step:
    """Name a distortion at a level. Raises DistortionError where either is none."""
    if name not in DISTORTIONS:
        known = f"{', '.join(DEEPERFORENSICS)}; {', '.join(FORGERYNET)}"
        raise DistortionError(f"{name} is no distortion: choose of {known}")
    if level not in LEVELS:
        raise DistortionError(f"{level} is no level of {name}: they are {LEVELS[0]} to {LEVELS[-1]}")
    return Step(name, level)
