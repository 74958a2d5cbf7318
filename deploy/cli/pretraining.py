"""`forgewatch pretrain`: weights for release 0 from unlabelled media."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from deploy.cli.devices import device_of
from deploy.cli.output import CommandError, UsageError, progress_bar, say, warn, writable

_NAMED = 5


def pretrain(
    folder: Annotated[
        Path, typer.Argument(metavar="DIR", help="images and videos, such as of one's own stream")
    ],
    out: Annotated[Path, typer.Option(help="the safetensors file to write")],
    minutes: Annotated[float, typer.Option(min=0.01, help="how long to train, interruptions aside")] = 10.0,
    seed: Annotated[int, typer.Option(min=0, help="of everything random")] = 0,
    backbone: Annotated[
        str | None, typer.Option(help='a timm model, or "none" for forensic features alone; else the default')
    ] = None,
    device: Annotated[str, typer.Option(help="cpu, cuda or auto")] = "auto",
) -> None:
    """Learn from unlabelled media what generators leave behind, by simulated ones; release 0 begins with it.

    All of it counts as real. The folders right below DIR are its sources. What was interrupted goes on when
    the same is called again.
    """
    import torch
    from safetensors import SafetensorError

    from detector.model.backbone import BackboneError, architecture_of
    from detector.release.architecture import Architecture
    from ingest.records import CropPlan
    from ingest.sandbox.sandbox import SandboxUnavailableError
    from updater.pretraining.media import PretrainingError, read_media
    from updater.pretraining.network import save_pretrained
    from updater.pretraining.pretrain import pretrain as train

    writable(out)
    state = out.with_name(f"{out.name}.state")
    try:
        architecture = architecture_of(backbone or Architecture().backbone)
        where = device_of(device)
        with progress_bar(hidden=not sys.stderr.isatty()) as progress:
            media = read_media(folder, CropPlan(), seed, progress)
            for line in media.unreadable[:_NAMED]:
                warn(f"left out {line}")
            done = train(
                media, architecture, minutes=minutes, seed=seed, device=where, state=state, progress=progress
            )
        save_pretrained(out, done.network)
    except BackboneError as error:
        raise UsageError(f"--backbone {error}") from error
    except (PretrainingError, SandboxUnavailableError, torch.OutOfMemoryError) as error:
        raise CommandError(str(error)) from error
    except (OSError, SafetensorError) as error:
        what = " ".join(str(error).split())
        raise CommandError(f"{out} cannot be written ({what}): make room, and call the same again") from error
    state.unlink(missing_ok=True)
    say(
        f"{len(media.sources)} files of {len(set(media.sources))} sources,"
        f" {len(media.unreadable)} unreadable, {media.over} not needed; {done.batches} batches"
    )
    if done.auc is not None:
        say(f"fresh simulated generators against real files that were held back: AUC {done.auc:.3f}")
    say(f"begin release 0 with FORGEWATCH_UPDATER_CHECKPOINT={out}")
    if architecture.backbone != Architecture().backbone:
        say(f"and FORGEWATCH_UPDATER_BACKBONE={architecture.backbone}")
