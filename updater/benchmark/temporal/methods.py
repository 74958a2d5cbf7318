"""The methods that find forged stretches, by name. To add one is a file beside this and a line."""

from updater.benchmark.temporal.bmn import HIDDEN, SMALL, with_hidden
from updater.benchmark.temporal.bsn import bsn
from updater.benchmark.temporal.convolutions import convolutions
from updater.benchmark.temporal.frames import frames
from updater.benchmark.temporal.method import Method

METHODS: dict[str, Method] = {
    "convolutions": convolutions,
    "frames": frames,
    "bsn": bsn,
    "bmn": with_hidden(HIDDEN),
    "bmn:small": with_hidden(SMALL),
}
