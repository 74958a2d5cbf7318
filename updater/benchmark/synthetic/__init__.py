"""The demonstration's own media: scenes, a simulated camera, photographs, forgery families."""

_FAMILIES = "blended inpainted upsampled autoencoded recompressed sharpened periodic smoothed"
DIRECTORIES = {name: number for number, name in enumerate(_FAMILIES.split(), 1)}
"""of the families in ForgeryNet's layout; the first four stand for an identity that is replaced"""
