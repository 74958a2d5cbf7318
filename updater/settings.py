"""The updater's settings, from the environment: FORGEWATCH_UPDATER_…"""

from pathlib import Path
from typing import Literal, Self
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from pydantic import Field, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from detector.release.manifest import NO_BACKBONE, Architecture
from ingest.settings import Address, KeyFile, Token
from updater.cron import read_cron

TIMM = Path("timm")
"""as a checkpoint: timm's own weights"""


class UpdaterSettings(BaseSettings):
    """When an update runs, what it trains, and where its candidate goes.

    The exemplars, and the budget of those that are kept to train on again, are the memory's
    (FORGEWATCH_MEMORY_DATABASE_URL, …_CROPS_URL, …_REHEARSAL_BUDGET).
    """

    model_config = SettingsConfigDict(env_prefix="FORGEWATCH_UPDATER_", frozen=True)

    database_url: str = Field(
        "sqlite:///.forgewatch/updater.sqlite",
        description="database of the update runs: SQLite by path, or PostgreSQL; may be the memory's",
    )
    work_dir: Path = Field(
        Path(".forgewatch/updater"), description="folder of checkpoints and stage outputs, one folder a run"
    )
    deploy_url: Address = Field("http://127.0.0.1:8700", description="where the deploy server is reached")
    deploy_token: Token | None = Field(None, description="bearer token that the deploy server asks for")
    signing_key: KeyFile | None = Field(
        None, description="PEM file of the private key that signs candidates; unset: they are not signed"
    )

    schedule: str | None = Field(
        None,
        description="when an update comes due: five cron fields, such as `0 3 * * 1-5`, or the seconds "
        "from one due update to the next",
    )
    schedule_timezone: str = Field("UTC", description="time zone of the fields, such as `Europe/Berlin`")
    min_new_exemplars: int | None = Field(
        None, ge=1, description="an update also comes due when so many exemplars were newly labelled"
    )
    after_alarm: bool = Field(
        False, description="an update also comes due when suspects of a source that shifted were labelled"
    )
    after_drift: bool = Field(
        False, description="an update also comes due when verdicts drift; without new labels it is refused"
    )
    lease_s: float = Field(60.0, gt=0, description="a runner silent for so long loses its run to another")

    job_template: str | None = Field(
        None,
        max_length=52,
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$",
        description="name of a suspended CronJob in this pod's namespace: each update runs as a Kubernetes "
        "Job made of its template; empty: in this process",
    )

    learner: Literal["lda", "softmax"] = Field(
        "lda",
        description="the learner of release 0 and all after it: lda solves linear discriminants over "
        "frozen features in seconds; softmax trains a backbone in minutes, and alone has one",
    )
    backbone: str = Field(
        Architecture().backbone,
        description='timm model that release 0 is built on, or "none" for forensic features alone; later '
        "releases keep their parent's",
    )
    checkpoint: Path | None = Field(
        None,
        description="release 0's initial weights: a safetensors file of the backbone's weights as timm names "
        "them, or of a whole network's; or \"timm\": timm's, downloaded; else it begins at random",
    )
    epochs: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="times that an item is drawn to train the backbone; unset: 100 steps for release 0 and "
        "50 later",
    )
    rate: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="highest learning rate of the backbone; unset: 0.003 for release 0 and 0.001 later",
    )
    batch: int | None = Field(
        None, ge=1, le=65536, description="items of a training step, 64 if unset: fewer fit a smaller GPU"
    )
    localizer_steps: int = Field(
        0,
        ge=0,
        description="training steps of the network that says where a picture is forged, 0.1 to 0.15 s each "
        "on one core; 0: a release has its parent's, and none where that has none",
    )
    scanner_steps: int = Field(
        0,
        ge=0,
        description="training steps, of 16 clips each, of the network that says when a video is "
        "forged: 600 take 6 to 7 minutes of one core; 0: a release has its parent's, and none where "
        "that has none",
    )
    without_kinds: frozenset[str] = Field(
        frozenset(), description="kinds of forging that pseudo-forgeries leave out, as a JSON list"
    )
    seed: int = Field(0, ge=0, description="seed of everything random in an update")
    threads: int = Field(2, ge=1, description="CPU threads of training and of evaluation")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="where training runs; auto takes a CUDA device if there is one"
    )

    max_forgotten_points: float = Field(5.0, description="gate: most mean points that old families may lose")
    max_reals_wrong: float = Field(
        0.06,
        description="gate: largest share of held-back reals called unknown, and largest share called fake",
    )
    max_power_points: float = Field(
        10.0, description="gate: most points by which the share of left-out families not called real may fall"
    )
    max_robustness_points: float = Field(
        5.0, description="gate: most points by which the accuracy under distortions may fall"
    )
    min_new_named: float = Field(0.5, description="gate: smallest share of a new family that is named as it")

    unsigned_declarations: Literal["fake", "evidence"] = Field(
        "fake",
        description="the label of items that declare generation or an AI edit by metadata or by an untrusted"
        " signer; evidence: the pixels' one",
    )
    metrics_port: int = Field(9103, ge=0, le=65535, description="port of /metrics, /livez and /readyz")

    @model_validator(mode="after")
    def _schedule_is_readable(self) -> Self:
        try:
            zone = ZoneInfo(self.schedule_timezone)
        except (ValueError, OSError, ZoneInfoNotFoundError):
            raise ValueError(
                f"FORGEWATCH_UPDATER_SCHEDULE_TIMEZONE={self.schedule_timezone} is none"
            ) from None
        if self.schedule is not None and not self.schedule.isdecimal():
            read_cron(self.schedule, zone)
        elif self.schedule is not None and not int(self.schedule):
            raise ValueError("FORGEWATCH_UPDATER_SCHEDULE: at least one second lies between two updates")
        return self

    @model_validator(mode="after")
    def _weights_are_of_a_model(self) -> Self:
        if self.learner == "softmax" and self.backbone == NO_BACKBONE:
            raise ValueError(
                "FORGEWATCH_UPDATER_LEARNER=softmax trains a backbone: name a timm model by …_BACKBONE"
            )
        for name in ("backbone", "checkpoint", "epochs", "rate", "batch"):
            if self.learner == "lda" and getattr(self, name) not in (None, NO_BACKBONE):
                raise ValueError(
                    f"FORGEWATCH_UPDATER_{name.upper()} is of a network that is trained by steps: set"
                    " FORGEWATCH_UPDATER_LEARNER=softmax"
                )
        return self
