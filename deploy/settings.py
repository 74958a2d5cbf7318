"""What deploy reads from the environment: FORGEWATCH_DEPLOY_…"""

from pathlib import Path
from typing import Literal, Self

from pydantic import Field, IPvAnyNetwork, SecretStr, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from deploy.notice_records import Webhook, key_of
from deploy.rollout_records import Plan
from ingest.settings import Address, KeyFile, LoginAddress, Token

PersonRole = Literal["viewer", "reviewer", "approver", "admin"]
"""What a person may do (see deploy.access.roles); each may all that those before it may."""


class DeploySettings(BaseSettings):
    """Settings of the deploy server and of the command line that talks to it."""

    model_config = SettingsConfigDict(env_prefix="FORGEWATCH_DEPLOY_", frozen=True, hide_input_in_errors=True)

    url: Address = Field("http://127.0.0.1:8700", description="where clients reach the deploy server")
    token: Token | None = Field(
        None, description="bearer token that a client sends; the server takes it for an admin, `shared token`"
    )
    detector_token: Token | None = Field(None, description="the detectors' token, for their calls alone")
    updater_token: Token | None = Field(None, description="the updater's token: it may do its calls alone")
    proxy_addresses: list[IPvAnyNetwork] = Field(
        [],
        description="networks of proxies whose X-Forwarded-User and X-Forwarded-Groups are believed, as JSON",
    )
    proxy_roles: dict[str, PersonRole] = Field(
        {}, description="the role of each of the groups that such a proxy names, as JSON"
    )
    approvals: int = Field(1, ge=1, le=2, description="how many people must approve a release to go live")
    labellers_may_approve: bool = Field(
        True, description="whether a person may approve a release that learnt from labels of theirs"
    )
    approval_days: float = Field(7.0, gt=0, le=365, description="how long an approval counts, days")
    plan: str = Field(
        "25,5,25,100",
        description="how a release goes live: the share of items that shadow scores twice, then those that"
        " the canary answers, in percent; `now`: at once",
    )
    plan_step_minutes: float = Field(10.0, ge=0, description="least duration of a rollout step, minutes")
    plan_step_answers: int = Field(
        500, ge=0, description="a step of a canary has at least so many answers by the challenger"
    )
    host: str = Field(
        "127.0.0.1", description="address the server listens on; others than loopback need a token or a proxy"
    )
    port: int = Field(8700, ge=0, le=65535, description="port the server listens on; 0 takes a free one")
    metrics_port: int = Field(9104, ge=0, le=65535, description="port of /metrics, /livez and /readyz")
    database_url: str = Field(
        "sqlite:///.forgewatch/deploy/ledger.sqlite",
        description="the ledger's database: SQLite by path, or PostgreSQL",
    )
    artifacts_url: str = Field(
        ".forgewatch/deploy/artifacts",
        description="where the release artifacts lie: a folder, or an s3:// URL",
    )
    cache_dir: Path = Field(
        Path(".forgewatch/cache/artifacts"),
        description="folder where `forgewatch score` keeps fetched artifacts",
    )
    max_file_bytes: int = Field(2**30, gt=0, description="largest file of an artifact, bytes")
    kafka_timeout_s: float = Field(5.0, gt=0, description="a broker that is silent for longer is down")
    health_urls: dict[str, Address] = Field(
        {
            "detector": "http://127.0.0.1:9101/metrics",
            "memory": "http://127.0.0.1:9102/metrics",
            "updater": "http://127.0.0.1:9103/metrics",
        },
        description="the metrics address of each process that `forgewatch status` asks how it does, as JSON",
    )
    prometheus_url: LoginAddress | None = Field(
        None,
        description="a Prometheus with the rules of helm/forgewatch, for `forgewatch status` and `doctor` to "
        "ask what fires; none by default",
    )

    webhooks: list[Webhook] = Field(
        [],
        description='where notices go, as JSON: `[{"url": "https://…", "form": "cloudevents"}]`, or `slack`',
    )
    webhook_hosts: list[str] = Field([], description="the hosts that webhooks may name, as JSON; no other is")
    webhook_ca: KeyFile | None = Field(
        None, description="PEM file of authorities that sign webhooks, beside the public ones"
    )
    webhook_secret: SecretStr | None = Field(
        None, description="the key that signs CloudEvents: `whsec_` and the base64 of 24 to 64 random bytes"
    )

    @model_validator(mode="after")
    def _plan_is_one(self) -> Self:
        self.plan_of(None)
        return self

    @model_validator(mode="after")
    def _webhooks_are_allowed(self) -> Self:
        allowed, urls = {host.lower() for host in self.webhook_hosts}, set()
        for number, webhook in enumerate(self.webhooks, 1):
            if webhook.host not in allowed:
                raise ValueError(
                    f"webhook {number} goes to {webhook.host}, which FORGEWATCH_DEPLOY_WEBHOOK_HOSTS does not"
                    " list: add it there"
                )
            if webhook.url in urls:
                raise ValueError(f"webhook {number} is there twice: leave one out")
            urls.add(webhook.url)
        if self.webhook_secret is not None:
            try:
                key_of(self.webhook_secret.get_secret_value())
            except ValueError as error:
                raise ValueError(f"FORGEWATCH_DEPLOY_WEBHOOK_SECRET: {error}") from None
        elif any(webhook.form == "cloudevents" for webhook in self.webhooks):
            raise ValueError(
                "FORGEWATCH_DEPLOY_WEBHOOK_SECRET is needed to sign CloudEvents: make one with"
                ' echo "whsec_$(openssl rand -base64 32)"'
            )
        return self

    def plan_of(self, text: str | None) -> Plan:
        """Return the plan that a text says, or the setting's. Raises ValueError, in one line."""
        return Plan.parse(text or self.plan, self.plan_step_minutes, self.plan_step_answers)
