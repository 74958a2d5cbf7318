"""The memory's settings, from the environment: FORGEWATCH_MEMORY_…, nothing else."""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from ingest.records import Interpolation, PicturePlan


class MemorySettings(BaseSettings):
    """Settings of the memory worker, and of everything else that opens the memory."""

    model_config = SettingsConfigDict(env_prefix="FORGEWATCH_MEMORY_", frozen=True)

    database_url: str = Field(
        "sqlite:///.forgewatch/memory/memory.sqlite",
        description="where the rows lie: an SQLAlchemy URL of SQLite or PostgreSQL",
    )
    crops_url: str = Field(
        ".forgewatch/memory/crops", description="where the crops lie: a folder, or a URL that fsspec knows"
    )
    index_path: Path = Field(
        Path(".forgewatch/memory/index"), description="file of the index's snapshot; rebuilt when missing"
    )
    group_id: str = Field("forgewatch-memory", description="Kafka consumer group of the memory workers")
    verdicts_group_id: str = Field(
        "forgewatch-memory-watch", description="consumer group watching the verdicts"
    )
    max_false_alarms: float = Field(
        0.05,
        gt=0,
        lt=1,
        description="bound on the chance that, while a release is live, any source raises a false alarm",
    )
    min_reference: int = Field(
        100, ge=20, le=1000, description="items called real that a source's test gathers before it begins"
    )
    audit_items: int = Field(
        100, ge=0, le=10_000, description="verdicts a week that are drawn for an audit by people; 0: none"
    )
    label_declared: bool = Field(
        False, description="label items by themselves that a trusted signer declares generated"
    )
    max_batch_messages: int = Field(32, ge=1, description="most messages remembered in one SQL transaction")
    picture_px: int = Field(
        0,
        ge=0,
        le=1024,
        description="side of the whole picture, resized, that an import keeps beside the crops for a "
        "release with an expert of whole pictures; 0 keeps none; where the live release has one, it decides",
    )
    picture_interpolation: Interpolation = Field(
        "bicubic", description="how that picture is resized: bilinear, bicubic or lanczos, as the model wants"
    )
    min_cluster_items: int = Field(8, ge=2, description="fewest unknowns that make a cluster")
    max_clustered: int = Field(
        2000,
        ge=10,
        description="unknowns that are compared at once for clusters; others join those that they belong to",
    )
    clusters_interval_s: float = Field(5.0, gt=0, description="shortest time between two lists of clusters")
    rehearsal_budget: int = Field(
        1500, ge=0, description="most exemplars to rehearse, of those that the live release has learnt"
    )
    held_back_budget: int = Field(
        2000,
        ge=100,
        description="most held-back exemplars that an update calibrates on, and that it tests on",
    )
    retention_days: float = Field(
        30.0,
        gt=0,
        description="crops of unknown and ignored items are purged when newer items are this much newer",
    )
    metrics_port: int = Field(9102, ge=0, le=65535, description="port of /metrics, /livez and /readyz")

    @property
    def picture_plan(self) -> PicturePlan | None:
        """How an import shows whole pictures before there is a release; None: not at all."""
        if not self.picture_px:
            return None
        side = self.picture_px
        return PicturePlan(width_px=side, height_px=side, interpolation=self.picture_interpolation)
