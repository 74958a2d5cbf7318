"""Where a training run goes on after it was interrupted: tensors and a few words, no pickle."""

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from ingest.durable import file_aside
from updater.training.processes import is_first

_FORMAT = "1"


class Checkpoint:
    """One file that holds the latest state of one run; without a path it holds nothing.

    Of several processes the first writes it and all read it, so they need one disk.

    identity says everything that the run was made from: a file with another identity, of another
    format, or damaged, is not gone on from and is overwritten. Stages follow in the order given.
    """

    def __init__(self, path: Path | None, identity: str, stages: tuple[str, ...]) -> None:
        self._path = path
        self._identity = identity
        self._stages = stages

    def resume(self, stage: str, network: torch.nn.Module, optimiser: torch.optim.Optimizer) -> int | None:
        """Load what was saved and return the steps done of this stage.

        Returns 0 where nothing was saved up to this stage. Returns None where the run was already past
        it: then only the network is loaded, since what the next stage reads follows from it.
        """
        found = self._read()
        if found is None:
            return 0
        saved_stage, step, tensors = found
        if self._stages.index(saved_stage) < self._stages.index(stage):
            return 0
        network.load_state_dict(
            {k.removeprefix("network."): v for k, v in tensors.items() if k.startswith("network.")}
        )
        if saved_stage != stage:
            return None
        state: dict[int, dict[str, torch.Tensor]] = {}
        for key, value in tensors.items():
            if key.startswith("optimiser."):
                _, number, name = key.split(".", 2)
                state.setdefault(int(number), {})[name] = value
        optimiser.load_state_dict({"state": state, "param_groups": optimiser.state_dict()["param_groups"]})
        return step

    def save(self, stage: str, step: int, network: torch.nn.Module, optimiser: torch.optim.Optimizer) -> None:
        """Write the state after `step` steps of the stage, durably."""
        if self._path is None or not is_first():
            return
        tensors = {f"network.{k}": v.detach().cpu().contiguous() for k, v in network.state_dict().items()}
        saved: dict[int, dict[str, Any]] = optimiser.state_dict()["state"]
        for number, values in saved.items():
            tensors |= {f"optimiser.{number}.{k}": v.detach().cpu().contiguous() for k, v in values.items()}
        metadata = {"format": _FORMAT, "identity": self._identity, "stage": stage, "step": str(step)}
        with file_aside(self._path) as aside:
            save_file(tensors, aside, metadata)

    def remove(self) -> None:
        """Drop the file: the run is done."""
        if self._path is not None and is_first():
            self._path.unlink(missing_ok=True)

    def _read(self) -> tuple[str, int, dict[str, torch.Tensor]] | None:
        if self._path is None or not self._path.exists():
            return None
        try:
            with safe_open(self._path, "pt") as file:
                metadata = file.metadata() or {}
                if metadata.get("format") != _FORMAT or metadata.get("identity") != self._identity:
                    return None
                tensors = {key: file.get_tensor(key) for key in file.keys()}  # noqa: SIM118
        except (SafetensorError, OSError):
            return None
        return metadata["stage"], int(metadata["step"]), tensors
