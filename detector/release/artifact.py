"""A release as a folder of files under one digest: its content, and how it is sealed, read and checked.

Among them is the reference set. No torch here.
"""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from detector.release.manifest import DamagedArtifactError, Manifest, read_manifest
from detector.release.tensors import GraphContract, Request
from ingest.durable import sync_tree

MANIFEST, MODEL, WEIGHTS = "manifest.json", "detector.onnx", "weights.safetensors"
REFERENCE, PROBE = "reference.safetensors", "probe.safetensors"
EVALUATION, MODEL_CARD = "evaluation.json", "model_card.md"
EVALUATION_PAGE = "evaluation.md"
"""The evaluation for the eye; no artifact needs it."""
SNAPSHOT = "snapshot.jsonl.gz"
"""The exemplars that the release was made of (updater/candidate/snapshot.py); older artifacts have none."""
STATISTICS = "sums.safetensors"
"""The sums that a release's discriminants were solved from (updater/training/sums.py); a release whose
network is trained by steps has none."""
SIGNATURE = "model.sig"
"""The signature of all other files (release/signature.py). No manifest names it: it can be made anew."""

REQUIRED = (MODEL, WEIGHTS, PROBE, EVALUATION, MODEL_CARD)
"""What every artifact holds beside its manifest; reference.safetensors only where the network is forensic."""


@dataclass(frozen=True)
class Graph:
    """One graph of a release: the manifest's field with its contract, and the names of its files."""

    field: str
    model: str
    probe: str
    weights: str

    @property
    def files(self) -> tuple[str, str, str]:
        """All three: a release that declares the graph has them."""
        return self.model, self.probe, self.weights


DETECTOR = Graph("contract", MODEL, PROBE, WEIGHTS)
"""What judges items: every release has it."""
LOCALIZER = Graph(
    "localizer", "localizer.onnx", "localizer_probe.safetensors", "localizer_weights.safetensors"
)
"""What says where a picture is forged."""
SCANNER = Graph("scanner", "scanner.onnx", "scanner_probe.safetensors", "scanner_weights.safetensors")
"""What says when a video is forged."""
GRAPHS = (DETECTOR, LOCALIZER, SCANNER)

FILES = frozenset(
    {MANIFEST, REFERENCE, EVALUATION, EVALUATION_PAGE, MODEL_CARD, SNAPSHOT, STATISTICS}.union(
        *(graph.files for graph in GRAPHS)
    )
)
"""Every file name that an artifact may hold. TorchServe puts the folder that it unpacks an archive into on
PYTHONPATH, before the standard library: a name that Python can import would run as code. None of these can.
"""


@dataclass(frozen=True)
class Artifact:
    """A sealed folder. digest is the SHA-256 of the manifest's bytes, and so of every file."""

    folder: Path
    manifest: Manifest
    digest: str

    @property
    def version(self) -> str:
        return version_of(self.digest)

    @property
    def graphs(self) -> dict[Graph, GraphContract]:
        """The graphs that the release has, with what each declares; the detector first."""
        declared = {graph: getattr(self.manifest, graph.field) for graph in GRAPHS}
        return {graph: contract for graph, contract in declared.items() if contract is not None}

    def graph_for(self, request: Request) -> Graph:
        """Return the graph that takes arrays of these names; the detector, where none does."""
        for graph, contract in self.graphs.items():
            if request.keys() == {spec.name for spec in contract.inputs}:
                return graph
        return DETECTOR


def version_of(digest: str) -> str:
    """The short name of a release: the first twelve hexadecimal digits of its digest."""
    return digest[:12]


def seal(folder: Path, draft: Manifest) -> Artifact:
    """Write the manifest of everything that lies in folder, and sync it all to disk.

    draft's `files` is replaced. Raises DamagedArtifactError when a file that every artifact needs is
    missing, when one lies there that is not in FILES, or something other than a plain file.
    """
    for made_of_the_rest in (MANIFEST, SIGNATURE):
        (folder / made_of_the_rest).unlink(missing_ok=True)
    present = sorted(folder.iterdir())
    if odd := [path.name for path in present if path.is_symlink() or not path.is_file()]:
        raise DamagedArtifactError(f"{folder}: not plain files: {', '.join(odd)}")
    manifest = draft.model_copy(update={"files": {path.name: sha256_of(path) for path in present}})
    _check_names(folder, manifest)
    data = manifest.model_dump_json(indent=1).encode()
    (folder / MANIFEST).write_bytes(data)
    sync_tree(folder)
    return Artifact(folder, manifest, hashlib.sha256(data).hexdigest())


def load(folder: Path) -> Artifact:
    """Read a folder's manifest, and no other file. Raises ArtifactError."""
    try:
        data = (folder / MANIFEST).read_bytes()
    except OSError as error:
        raise DamagedArtifactError(f"{folder}: no manifest: {error.strerror}") from error
    manifest = read_manifest(data)
    _check_names(folder, manifest)
    return Artifact(folder, manifest, hashlib.sha256(data).hexdigest())


def verify(folder: Path, digest: str | None = None) -> Artifact:
    """Read a folder and hash each file that its manifest names.

    Files beside those are left alone (TorchServe unpacks its own among them). Raises
    DamagedArtifactError when a byte differs, or when `digest` is given and is not the manifest's.
    """
    artifact = load(folder)
    if digest is not None and artifact.digest != digest:
        raise DamagedArtifactError(f"{folder}: the manifest's digest is {artifact.digest}, not {digest}")
    for name, expected in artifact.manifest.files.items():
        path = folder / name
        if path.is_symlink() or not path.is_file():
            raise DamagedArtifactError(f"{folder}: {name} is missing, or no plain file")
        if (digest_now := sha256_of(path)) != expected:
            raise DamagedArtifactError(f"{folder}: {name} has SHA-256 {digest_now}, declared is {expected}")
    return artifact


def sha256_of(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _check_names(folder: Path, manifest: Manifest) -> None:
    needed: tuple[str, ...] = (*REQUIRED, REFERENCE) if manifest.architecture.forensic else REQUIRED
    for graph in GRAPHS:
        declared = getattr(manifest, graph.field) is not None
        needed += graph.files if declared else ()
        if not declared and (spare := [name for name in graph.files if name in manifest.files]):
            raise DamagedArtifactError(f"{folder}: it declares no {graph.field} for {', '.join(spare)}")
    if missing := [name for name in dict.fromkeys(needed) if name not in manifest.files]:
        raise DamagedArtifactError(f"{folder}: the artifact lacks {', '.join(missing)}")
    # The names become paths wherever the artifact is fetched to.
    if wrong := sorted(manifest.files.keys() - (FILES - {MANIFEST})):
        raise DamagedArtifactError(f"{folder}: no artifact has files of these names: {wrong}")


_ARRAYS = (
    *("features", "mean", "whitening"),
    *("embeddings", "embedding_mean", "embedding_whitening"),
    *("traces", "trace_whitening", "trace_widths"),
)


@dataclass(frozen=True)
class Reference:
    """The exemplars that novelty is measured against.

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
    def is_forged(self) -> NDArray[np.bool_]:
        """Which exemplars are forgeries, bool (R,): a class of reals is "real", or ends in "/real"."""
        return np.array([name.rpartition("/")[2] != "real" for name in self.families], bool)

    def save(self, path: Path) -> None:
        """Write the arrays; ids and families belong into the manifest."""
        arrays = {name: getattr(self, name) for name in _ARRAYS}
        save_file({name: np.ascontiguousarray(array) for name, array in arrays.items()}, path)


def load_reference(path: Path, ids: tuple[str, ...], families: tuple[str, ...]) -> Reference:
    """Read back a file of Reference.save, with the manifest's ids and families."""
    arrays = load_file(path)
    return Reference(ids=ids, families=families, **{name: arrays[name] for name in _ARRAYS})
