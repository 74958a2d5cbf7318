"""What the updater reads from the environment: FORGEWATCH_UPDATER_…"""

from pathlib import Path
from typing import Literal, Self

from apscheduler.triggers.cron import CronTrigger
from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from detector.release.architecture import NO_BACKBONE, Architecture
from updater.training.schedules import Augment, Schedule


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
    deploy_url: str = Field("http://127.0.0.1:8700", description="where the deploy server is reached")
    deploy_token: SecretStr | None = Field(None, description="bearer token that the deploy server asks for")
    deploy_timeout_s: float = Field(
        30.0, gt=0, description="longest wait for one answer of the deploy server"
    )

    schedule_cron: str | None = Field(
        None, description="when an update comes due: five cron fields in UTC, such as `0 3 * * *`"
    )
    schedule_interval_s: int | None = Field(
        None, ge=1, description="instead of cron: seconds from one due update to the next"
    )
    misfire_grace_s: int = Field(
        3600, ge=1, description="a due update that could not start is made up for this long"
    )
    min_new_exemplars: int | None = Field(
        None, ge=1, description="an update also comes due when so many exemplars were newly labelled"
    )
    after_alarm: bool = Field(
        False, description="an update also comes due when suspects of a source that shifted were labelled"
    )
    poll_interval_s: float = Field(
        5.0, gt=0, description="seconds between two looks for a run and for new labels"
    )
    lease_s: float = Field(
        60.0, gt=0, description="a runner that is silent for so long loses its run to another"
    )
    max_takeovers: int = Field(
        2, ge=0, description="how many runners may die on one run before it counts as failed"
    )

    job_template: str | None = Field(
        None,
        max_length=52,
        pattern=r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?)?$",
        description="name of a suspended CronJob in this pod's namespace: each update runs as a Kubernetes "
        "Job made of its template; empty: in this process",
    )

    backbone: str = Field(
        Architecture().backbone,
        description='timm model that release 0 is built on, or "none" for forensic features alone; later '
        "releases keep their parent's",
    )
    checkpoint: Path | None = Field(
        None,
        description="safetensors file of weights that release 0 begins with: the backbone's as timm names "
        "them, or a whole network's; else it begins at random",
    )
    pretrained: bool = Field(
        False,
        description="whether release 0 begins with timm's weights of the backbone, downloaded",
    )
    picture_backbone: str = Field(
        NO_BACKBONE,
        description='timm model that looks at whole pictures beside the crops, or "none". It needs '
        "FORGEWATCH_MEMORY_PICTURE_PX; later releases keep their parent's",
    )
    picture_checkpoint: Path | None = Field(
        None,
        description="safetensors file of that model's weights, as timm or its authors name them; unset: "
        "timm's, downloaded where it begins",
    )
    epochs: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="times that an item is drawn to train the network, whole or, "
        "without a backbone, its head; unset: 100 steps of a backbone for release 0 and 50 later, 2000 and "
        "1500 of a head",
    )
    head_epochs: float | None = Field(
        None,
        ge=0,
        allow_inf_nan=False,
        description="times that an item is drawn to train what lies above a backbone after that; unset: 2000 "
        "steps for release 0, and 1500 later",
    )
    rate: float | None = Field(
        None,
        gt=0,
        allow_inf_nan=False,
        description="highest learning rate of what the epochs are of; "
        "unset: 0.003 of a backbone for release 0 and 0.001 later, 0.002 of a head",
    )
    rate_schedule: Schedule = Field(
        "one-cycle", description="how that rate goes on: one-cycle, cosine, or tenths (it falls three times)"
    )
    batch: int | None = Field(
        None,
        ge=1,
        le=65536,
        description="items of a training step, 64 if unset: fewer fit a smaller GPU",
    )
    augment: Augment = Field(
        "none",
        description="of crops while a backbone is trained: none, flip (left to right), or flip-shift",
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
        frozenset(),
        description="kinds of forging that pseudo-forgeries leave out, as a JSON list",
    )
    seed: int = Field(0, ge=0, description="seed of everything random in an update")
    threads: int = Field(2, ge=1, description="CPU threads of training and of evaluation")
    device: Literal["auto", "cpu", "cuda"] = Field(
        "auto", description="where training runs; auto takes a CUDA device if there is one"
    )

    max_forgotten_points: float = Field(
        5.0, description="gate: most points that the old families may lose, on average"
    )
    max_reals_unknown: float = Field(
        0.06, description="gate: largest share of held-back reals called unknown"
    )
    max_reals_fake: float = Field(0.06, description="gate: largest share of held-back reals called fake")
    max_power_points: float = Field(
        10.0,
        description="gate: most points by which the share of left-out families not called real may fall",
    )
    max_robustness_points: float = Field(
        5.0,
        description="gate: most points by which the accuracy under distortions may fall, beyond chance",
    )
    min_new_named: float = Field(
        0.5, description="gate: smallest share of each new family that is named as it"
    )

    metrics_port: int = Field(9103, ge=0, le=65535, description="port of /metrics, /livez and /readyz")

    @field_validator("schedule_cron")
    @classmethod
    def _cron_is_readable(cls, value: str | None) -> str | None:
        if value is not None:
            CronTrigger.from_crontab(value)  # ValueError says which field is wrong
        return value

    @model_validator(mode="after")
    def _one_schedule(self) -> Self:
        if self.schedule_cron is not None and self.schedule_interval_s is not None:
            raise ValueError("give FORGEWATCH_UPDATER_SCHEDULE_CRON or …_SCHEDULE_INTERVAL_S, not both")
        return self

    @model_validator(mode="after")
    def _one_beginning(self) -> Self:
        if self.checkpoint is not None and self.pretrained:
            raise ValueError("give FORGEWATCH_UPDATER_CHECKPOINT or …_PRETRAINED, not both")
        if self.pretrained and self.backbone == NO_BACKBONE:
            raise ValueError(
                "FORGEWATCH_UPDATER_PRETRAINED needs a timm model as FORGEWATCH_UPDATER_BACKBONE"
            )
        return self

    @model_validator(mode="after")
    def _weights_are_of_a_model(self) -> Self:
        if self.picture_checkpoint is not None and self.picture_backbone == NO_BACKBONE:
            raise ValueError("FORGEWATCH_UPDATER_PICTURE_CHECKPOINT needs a timm model as …_PICTURE_BACKBONE")
        return self
