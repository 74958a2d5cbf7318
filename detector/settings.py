"""The detector's settings, from the environment: FORGEWATCH_DETECTOR_…"""

from pathlib import Path

from pydantic import Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from ingest.settings import Address, KeyFile, Token


class DetectorSettings(BaseSettings):
    """Settings of a detector worker and of the TorchServe handler beside it."""

    model_config = SettingsConfigDict(env_prefix="FORGEWATCH_DETECTOR_", frozen=True)

    group_id: str = Field("forgewatch-detector", description="consumer group that the workers share")
    transactional_id: str | None = Field(
        None,
        description="the worker's producer: its own, the same after a restart; unset: the group, the host "
        "and the lowest number that is free there",
    )
    torchserve_url: Address = Field("http://127.0.0.1:8080", description="TorchServe's inference address")
    torchserve_management_url: Address = Field(
        "http://127.0.0.1:8081", description="TorchServe's management address: http://… or unix:PATH"
    )
    model_store_dir: Path = Field(
        Path(".forgewatch/model-store"), description="folder shared with TorchServe, where archives are put"
    )
    deploy_url: Address = Field("http://127.0.0.1:8700", description="where artifacts are fetched from")
    deploy_token: Token | None = Field(None, description="bearer token for the deploy server")
    trusted_signers: KeyFile | None = Field(
        None,
        description="PEM file of the certificates whose keys may sign a release; every process that uses one "
        "reads it, and refuses what they did not sign; unset: signatures are not asked for",
    )
    c2pa_trust_file: KeyFile | None = Field(
        None,
        description="PEM file of the certificates by which signers of Content Credentials are trusted, such"
        " as C2PA's trust list; read again when it changes; unset: none is trusted",
    )
    model_threads: int = Field(1, ge=1, description="threads of ONNX Runtime in one TorchServe worker")
    max_batch_items: int = Field(64, ge=1, description="most items of one transaction")
    max_batch_duration_s: float = Field(
        2.0, gt=0, description="how long a batch should take: of slow media it has fewer items, seconds"
    )
    max_request_bytes: int = Field(
        6_291_456,
        gt=0,
        description="largest request to TorchServe unless one item has more, bytes; stock takes 6553500",
    )
    rollback_window_s: float = Field(
        600.0, ge=0, description="how long the release before stays loaded after a swap, seconds"
    )
    metrics_port: int = Field(9101, ge=0, le=65535, description="port of /metrics, /livez and /readyz")

    @property
    def signing_key(self) -> bytes | None:
        """The key that signs comparisons and outcomes: deploy knows its detectors' token."""
        return None if self.deploy_token is None else self.deploy_token.get_secret_value().encode()
