"""Where an exemplar lies: the split of a group, the shelf of a label."""

import hashlib

from memory.records import Shelf, Split

TRAIN_SHARE, CALIBRATION_SHARE = 0.6, 0.2
IGNORE = "ignore"


def split_of(group: str) -> Split:
    """Return the side on which a group lies for ever: 60 % train, 20 % calibration, 20 % test.

    By SHA-256 of its name, so that no state and no order of arrival has a say.
    """
    share = int.from_bytes(hashlib.sha256(group.encode()).digest()[:8]) / 2**64
    if share < TRAIN_SHARE:
        return "train"
    return "calibration" if share < TRAIN_SHARE + CALIBRATION_SHARE else "test"


def shelf_of(what: str, split: Split) -> Shelf:
    """Return the shelf of an exemplar labelled `what` (a family, real or ignore)."""
    if what == IGNORE:
        return "ignored"
    return "rehearsal" if split == "train" else "held-back"
