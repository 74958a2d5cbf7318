"""The experts that updates carry into their releases, a folder each, and their evaluations."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from pydantic import BaseModel, Field, ValidationError

from detector.release.artifact import sha256_of
from detector.release.experts import PICTURES, ExpertContract
from detector.serving.session import Session
from ingest.durable import folder_aside, write_durably
from memory.features import ItemFeatures
from memory.records import REAL
from updater.data.training_data import LabelledCrops
from updater.experts.check import ExpertError
from updater.experts.look import Expert, logits_of
from updater.measures import auroc, auroc_interval
from updater.progress import Steps, no_steps

FOLDER = "experts"
"""in the updater's work folder, which all its pods share"""
_MODEL, _ABOUT = "expert.onnx", "expert.json"


class SourceWorth(BaseModel, frozen=True):
    """How well an expert tells a source's held-back forgeries from its reals."""

    source: str
    reals: int
    fakes: int
    auc: float | None = Field(description="None where the source lacks reals or forgeries")
    low: float | None = Field(description="of a 95 % interval")
    high: float | None


class ExpertEvaluation(BaseModel, frozen=True):
    """An expert's figures on a memory when it was added, and its cost."""

    everywhere: SourceWorth = Field(description="all sources together")
    sources: tuple[SourceWorth, ...]
    seconds: float = Field(description="of one core an image")
    detector_seconds: float = Field(description="of the forensic features of the same image")


class RegisteredExpert(BaseModel, frozen=True):
    """A row of the registry."""

    contract: ExpertContract
    worth: ExpertEvaluation


class ExpertRegistry:
    """The experts below one folder. An expert is there as a whole or not at all."""

    def __init__(self, work_dir: Path) -> None:
        self.folder = work_dir / FOLDER

    def add(self, registered: RegisteredExpert, model: Path) -> None:
        """Register an expert with a copy of its ONNX file. Raises ExpertError where its name is taken."""
        target = self.folder / registered.contract.name
        self.require_free(registered.contract.name)
        self.folder.mkdir(parents=True, exist_ok=True)
        with folder_aside(target) as aside:
            shutil.copyfile(model, aside / _MODEL)
            write_durably(aside / _ABOUT, registered.model_dump_json(indent=1).encode())

    def require_free(self, name: str) -> None:
        """Raise ExpertError where an expert of that name is registered."""
        if (self.folder / name).exists():
            raise ExpertError(
                f"there is an expert {name}: forgewatch expert remove {name}, or choose another name"
            )

    def remove(self, name: str) -> None:
        """Forget an expert: the next release is without it. Raises ExpertError where there is none."""
        if name not in self.names():
            known = ", ".join(self.names()) or "none is registered"
            raise ExpertError(f"no expert is called {name!r}: {known}")
        shutil.rmtree(self.folder / name)

    def names(self) -> list[str]:
        """Return the names of all experts, sorted."""
        return sorted(path.parent.name for path in self.folder.glob(f"*/{_ABOUT}"))

    def rows(self) -> list[RegisteredExpert]:
        """Return all experts, by name. Raises ExpertError for a damaged one."""
        return [self._row(name) for name in self.names()]

    def experts(self) -> tuple[Expert, ...]:
        """Return all experts with their files, verified. Raises ExpertError for a damaged one."""
        registered = []
        for name in self.names():
            contract, path = self._row(name).contract, self.folder / name / _MODEL
            if not path.is_file() or sha256_of(path) != contract.digest:
                raise self._damage_error(name)
            registered.append(Expert(contract, path))
        return tuple(registered)

    def _row(self, name: str) -> RegisteredExpert:
        try:
            return RegisteredExpert.model_validate_json((self.folder / name / _ABOUT).read_bytes())
        except (OSError, ValidationError) as error:
            raise self._damage_error(name) from error

    def _damage_error(self, name: str) -> ExpertError:
        return ExpertError(f"expert {name} below {self.folder} is damaged: remove it, and add it anew")


MOST_SECONDS = 3.0
"""of one core an image: TorchServe has 120 s for a batch of 32 images, and does the rest in it too"""
_BUDGET_S, _MOST_ITEMS, _LEAST_ITEMS = 300.0, 600, 60
_CALLS = 5


def cost_of(expert: Expert, items: LabelledCrops) -> tuple[float, float]:
    """Return the seconds of one core that an item takes, by the expert and by the forensic features.

    Of the item with the most crops; the least of some calls, since another process only ever adds. Raises
    ExpertError where the stream cannot pay that.
    """
    most = int(np.diff(items.starts).argmax())
    crops = items.crops[items.starts[most] : items.starts[most + 1]]
    contract, features = expert.contract, ItemFeatures(crops.shape[1])
    session = Session(expert.path, contract, threads=1)
    side = contract.side_px
    pictures = crops if contract.input == "crop" else np.zeros((1, side, side, 3), np.uint8)
    seconds = _seconds(lambda: session.score({PICTURES: pictures}))
    if seconds > MOST_SECONDS:
        raise ExpertError(
            f"{contract.name} takes {seconds:.1f} s of one core an image, and the stream can pay"
            f" {MOST_SECONDS:g}: take a smaller network, a smaller --px, or --input resize"
        )
    return seconds, _seconds(lambda: features([crops]))


def worth_of(
    expert: Expert, items: LabelledCrops, kept: Path | None = None, progress: Steps = no_steps
) -> ExpertEvaluation:
    """Measure an expert on held-back items; fewer of them where it is slow, each class and source in turn.

    Raises ExpertError where there are no reals or no forgeries, the expert costs too much, or it tells the
    wrong way round.
    """
    real = np.array(items.families) == REAL
    if real.all() or not real.any():
        lacking = "forgery" if real.all() else "real"
        raise ExpertError(f"the memory holds back no labelled {lacking} to check an expert on: import some")
    seconds, of_features = cost_of(expert, items)
    count = int(np.clip(_BUDGET_S / max(seconds, 1e-6), _LEAST_ITEMS, _MOST_ITEMS))
    some = items.take(_in_turns(items, count))
    logits, real = logits_of(expert, some, kept, progress), np.array(some.families) == REAL
    sources, groups = np.array(some.sources), np.array(some.groups)

    def of(source: str, chosen: np.ndarray) -> SourceWorth:
        fakes, reals = chosen & ~real, chosen & real
        of_reals, of_fakes = len(np.unique(groups[reals])), len(np.unique(groups[fakes]))
        auc = auroc(logits[fakes], logits[reals]) if of_reals and of_fakes else None
        low, high = (None, None) if auc is None else auroc_interval(auc, of_fakes, of_reals)
        return SourceWorth(
            source=source, reals=int(reals.sum()), fakes=int(fakes.sum()), auc=auc, low=low, high=high
        )

    everywhere = of("all", np.ones(len(some), bool))
    if everywhere.high is not None and everywhere.high < 0.5:
        raise ExpertError(
            f"{expert.contract.name} holds reals for forged here (AUC {everywhere.auc:.2f}, at most"
            f" {everywhere.high:.2f}): try --fake-logit 0, or another preprocessing"
        )
    return ExpertEvaluation(
        everywhere=everywhere,
        sources=tuple(of(str(source), sources == source) for source in np.unique(sources)),
        seconds=seconds,
        detector_seconds=of_features,
    )


def _in_turns(items: LabelledCrops, count: int) -> list[int]:
    """Return at most so many items, of all sources and classes in turn."""
    seen: dict[tuple[str, str], int] = {}
    turns = []
    for place, kind in enumerate(zip(items.sources, items.families, strict=True)):
        seen[kind] = seen.get(kind, 0) + 1
        turns.append((seen[kind], place))
    return sorted(place for _, place in sorted(turns)[:count])


def _seconds(call: Callable[[], object]) -> float:
    call()
    least = float("inf")
    for _ in range(_CALLS):
        started = time.thread_time()
        call()
        least = min(least, time.thread_time() - started)
    return least
