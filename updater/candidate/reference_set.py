"""The reference set of a release: training items, whitened, that novelty is measured against."""

import hashlib
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from detector.model.network import Network
from detector.model.scores import NetworkOutput
from detector.release.artifact import Reference
from detector.release.manifest import FEATURE_WIDTH, TRACE_COLUMNS
from updater.measures import within_class_whitening

REFERENCE_ROWS = 1500


class CalibrationError(ValueError):
    """The calibration shelf cannot carry a gate. Fatal until it holds more."""


_LEAST_OF_SOURCE = 5
"""items of a class and a source, from which their mean is taken out for itself"""


def make_reference(
    output: NetworkOutput, families: Sequence[str], ids: Sequence[str], sources: Sequence[str] | None = None
) -> Reference:
    """Whiten n items' raw pooled features and their embeddings, on the CPU, and keep them all.

    sources: of each item; None: none is known. The whitenings are those of the within-class covariances,
    shrunk (Ledoit and Wolf 2004); of the features within each class and source. How far sources lie apart is
    no noise: taken for it, it would hide what a forgery changes inside of one. Embeddings gain nothing by it.
    Features that are not laid out as `forensics.py` has them are one group of traces. Raises CalibrationError
    for fewer than 10 items.
    """
    if len(ids) < 10:
        raise CalibrationError(f"{len(ids)} training items are too few for a reference set")
    features, embeddings = output.features.numpy(), output.embedding.numpy()
    strata = np.array(families) if sources is None else _strata(families, sources)
    mean, whitening = within_class_whitening(features, strata)
    embedding_mean, embedding_whitening = within_class_whitening(embeddings, np.array(families))
    width = features.shape[1]
    groups = TRACE_COLUMNS if width == FEATURE_WIDTH else (slice(0, width),)
    blocks = [np.zeros((width, columns.stop - columns.start), np.float32) for columns in groups]
    for columns, block in zip(groups, blocks, strict=True):
        block[columns] = within_class_whitening(features[:, columns], strata)[1]
    trace_whitening = np.concatenate(blocks, 1)
    return Reference(
        features=((features - mean) @ whitening).astype(np.float32),
        ids=tuple(ids),
        families=tuple(families),
        mean=mean,
        whitening=whitening,
        embeddings=((embeddings - embedding_mean) @ embedding_whitening).astype(np.float32),
        embedding_mean=embedding_mean,
        embedding_whitening=embedding_whitening,
        traces=((features - mean) @ trace_whitening).astype(np.float32),
        trace_whitening=trace_whitening,
        trace_widths=np.array([block.shape[1] for block in blocks]),
    )


@dataclass(frozen=True)
class Foreign:
    """Rows of a release's reference set whose exemplars no memory holds."""

    features: NDArray[np.float32]
    """[R, F], raw"""
    ids: tuple[str, ...]
    families: tuple[str, ...]

    def before(
        self, network: Network, output: NetworkOutput, *named: Sequence[str]
    ) -> tuple[NetworkOutput, tuple[Sequence[str], ...]]:
        """Return their network output followed by the others', with the names of both.

        named: families, ids and sources of the others. A network of frozen features alone.
        """
        with torch.no_grad():
            own = network.cpu().classify(torch.zeros(len(self.ids), 0), torch.from_numpy(self.features))
        joined = NetworkOutput(*(torch.cat(pair) for pair in zip(own, output, strict=True)))
        first = self.families, self.ids, ("",) * len(self.ids)
        return joined, tuple([*own_names, *other] for own_names, other in zip(first, named, strict=True))


def foreign_rows(reference: Reference, held: Collection[str]) -> Foreign:
    """Return rows of a reference set whose exemplars are none of these ids, half of its room at most."""
    at = np.flatnonzero(~np.isin(np.array(reference.ids, str), list(held)))
    families, ids = np.array(reference.families, str)[at], np.array(reference.ids, str)[at]
    at = at[equal_shares(families, ids, REFERENCE_ROWS // 2)]
    raw = reference.features[at].astype(np.float64) @ np.linalg.pinv(reference.whitening.astype(np.float64))
    names = (tuple(of[i] for i in at) for of in (reference.ids, reference.families))
    return Foreign((raw + reference.mean).astype(np.float32), *names)


def _strata(families: Sequence[str], sources: Sequence[str]) -> NDArray[np.str_]:
    """Return each item's class and source, str [n]; a class's sources with few items are one together."""
    pairs = list(zip(families, sources, strict=True))
    items = Counter(pairs)
    numbers: dict[tuple[str, str | None], int] = {}
    strata = (
        (family, source if items[family, source] >= _LEAST_OF_SOURCE else None) for family, source in pairs
    )
    return np.array([numbers.setdefault(stratum, len(numbers)) for stratum in strata]).astype(str)


def equal_shares(families: NDArray[np.str_], ids: NDArray[np.str_], rows: int) -> list[int]:
    """Return at most `rows` items, ascending: an equal share of each class, drawn by the digests of ids.

    An imported item's id is a digest itself, but a streamed one's is its partition and its offset: the first
    of these by name would be those that came first.
    """
    drawn = [hashlib.sha256(str(id_).encode()).digest() for id_ in ids]
    by_family = {f: sorted(np.flatnonzero(families == f), key=drawn.__getitem__) for f in np.unique(families)}
    left, chosen = rows, []
    for number, members in enumerate(sorted(by_family.values(), key=len)):
        share = min(len(members), left // (len(by_family) - number))
        chosen += [int(i) for i in members[:share]]
        left -= share
    return sorted(chosen)
