"""The experts that updates carry into their releases: a folder of the updater's own, one folder an expert."""

import shutil
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from detector.release.artifact import sha256_of
from detector.release.experts import ExpertContract
from ingest.durable import folder_aside, write_durably
from updater.experts.check import ExpertError
from updater.experts.look import Expert

FOLDER = "experts"
"""in the updater's work folder, which all its pods share"""
_MODEL, _ABOUT = "expert.onnx", "expert.json"


class SourceWorth(BaseModel):
    """How well an expert tells a source's held-back forgeries from its reals."""

    model_config = ConfigDict(frozen=True)

    source: str
    reals: int
    fakes: int
    auc: float | None = Field(description="None where the source lacks reals or forgeries")
    low: float | None = Field(description="of a 95 % interval")
    high: float | None


class ExpertEvaluation(BaseModel):
    """What an expert is worth on a memory when it was added, and what it costs."""

    model_config = ConfigDict(frozen=True)

    everywhere: SourceWorth = Field(description="all sources together")
    sources: tuple[SourceWorth, ...]
    seconds: float = Field(description="of one core an image")
    detector_seconds: float = Field(description="of the forensic features of the same image")


class RegisteredExpert(BaseModel):
    """A row of the registry."""

    model_config = ConfigDict(frozen=True)

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
        found = []
        for name in self.names():
            contract, path = self._row(name).contract, self.folder / name / _MODEL
            if not path.is_file() or sha256_of(path) != contract.digest:
                raise self._damage_error(name)
            found.append(Expert(contract, path))
        return tuple(found)

    def _row(self, name: str) -> RegisteredExpert:
        try:
            return RegisteredExpert.model_validate_json((self.folder / name / _ABOUT).read_bytes())
        except (OSError, ValidationError) as error:
            raise self._damage_error(name) from error

    def _damage_error(self, name: str) -> ExpertError:
        return ExpertError(f"expert {name} below {self.folder} is damaged: remove it, and add it anew")
