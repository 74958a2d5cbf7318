"""A release's reference set: forensic features and embeddings of exemplars, whitened. No torch here."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

_ARRAYS = (
    *("features", "mean", "whitening"),
    *("embeddings", "embedding_mean", "embedding_whitening"),
    *("traces", "trace_whitening", "trace_widths"),
)


@dataclass(frozen=True)
class Reference:
    """What novelty is measured against.

    features is float32 (R, W), already whitened; ids and families name its R exemplars. A raw
    forensic feature row f, float32 (F,), is whitened as (f - mean) @ whitening, with mean (F,) and
    whitening (F, W) of the within-class covariance. embeddings is float32 (R, V), the network's own
    embeddings of the same exemplars, whitened alike by embedding_mean (D,) and embedding_whitening (D, V).
    traces is float32 (R, T), the groups of features that each see one kind of trace, every group whitened
    for itself, beside one another: (f - mean) @ trace_whitening (F, T), so many columns a group as
    trace_widths int64 (G,) says.
    """

    features: NDArray[np.float32]
    ids: tuple[str, ...]
    families: tuple[str, ...]
    mean: NDArray[np.float32]
    whitening: NDArray[np.float32]
    embeddings: NDArray[np.float32]
    embedding_mean: NDArray[np.float32]
    embedding_whitening: NDArray[np.float32]
    traces: NDArray[np.float32]
    trace_whitening: NDArray[np.float32]
    trace_widths: NDArray[np.int64]

    def __post_init__(self) -> None:
        rows = len(self.features)
        if not rows == len(self.embeddings) == len(self.traces) == len(self.ids) == len(self.families):
            raise ValueError(
                f"{rows} rows of features, {len(self.embeddings)} of embeddings, "
                f"{len(self.traces)} of traces, {len(self.ids)} ids and {len(self.families)} families"
            )
        if self.trace_widths.sum() != self.traces.shape[1]:
            raise ValueError(f"traces of {self.trace_widths} columns are not {self.traces.shape[1]} in all")
        for mean, whitening, whitened in (
            (self.mean, self.whitening, self.features),
            (self.embedding_mean, self.embedding_whitening, self.embeddings),
            (self.mean, self.trace_whitening, self.traces),
        ):
            if whitening.shape != (len(mean), whitened.shape[1]):
                raise ValueError(f"whitening is {whitening.shape}, not {(len(mean), whitened.shape[1])}")

    def whiten(self, raw: NDArray[np.float32]) -> NDArray[np.float32]:
        """Raw forensic features (n, F) in the reference's coordinates, float32 (n, W)."""
        whitened: NDArray[np.float32] = ((raw - self.mean) @ self.whitening).astype(np.float32)
        return whitened

    @property
    def forged(self) -> NDArray[np.bool_]:
        """Which exemplars are forgeries, bool (R,): a class of reals is "real", or ends in "/real"."""
        return np.array([name.rpartition("/")[2] != "real" for name in self.families], bool)

    def save(self, path: Path) -> None:
        """Write the arrays; ids and families belong into the manifest."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)


def load_reference(path: Path, ids: tuple[str, ...], families: tuple[str, ...]) -> Reference:
    """Read back what Reference.save wrote, with the manifest's ids and families."""
    arrays = load_file(path)
    return Reference(ids=ids, families=families, **{name: arrays[name] for name in _ARRAYS})
