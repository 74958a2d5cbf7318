"""The settings of media entering: the broker, the topics, the limits on hostile input."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr
from pydantic_settings import BaseSettings, SettingsConfigDict

# Room that a record's headers and framing may take beyond the media limit. Topics and clients that
# carry an item onwards (dead letters, unknowns) are this much wider than the topic it came from, or
# a record that was accepted once could not be written again and its partition would stand still.
HEADER_ROOM_BYTES = 65_536


def form(pattern: str, problem: str) -> BeforeValidator:
    """Ask a variable for a form: one that lacks it may hold a secret, which a later error would tell."""

    def check(value: Any) -> Any:
        if isinstance(value, str) and not re.fullmatch(pattern, value, re.DOTALL):
            raise ValueError(problem)
        return value

    return BeforeValidator(check)


_HOST = r"(\[[0-9A-Fa-f:.]+(%\w+)?\]|[\w.-]+)(:\d{1,5})?"
_SITE, _HTTP = rf"{_HOST}(/[!-?A-~]*)?", "it is http://HOST:PORT or https://HOST:PORT"
Address = Annotated[str, form(rf"https?://{_SITE}|unix:[^@]*", f"{_HTTP}, with no user or password")]
# What asks there shows the address without its login.
LoginAddress = Annotated[str, form(rf"https?://([^\s/?#@]+@)?{_SITE}", f"{_HTTP}; percent-encode a login")]
# Of a bearer token, which a header carries.
Token = Annotated[SecretStr, form("[ -~]*", "a token is one line of printable ASCII")]
_FILE = form(r"(?!.*(-----|\n)|[\w+=][\w+/=]{79,}$).*", "it is the name of a file, not what is in it")
KeyFile = Annotated[Path, _FILE]
_BROKER = rf"\s*(\w+://)?{_HOST}\s*"
_BROKERS = form(rf"{_BROKER}(,{_BROKER})*", "it is HOST:PORT,…, with no user or password")


class IngestSettings(BaseSettings):
    """Settings of the room ingest, from FORGEWATCH_INGEST_… in the environment."""

    model_config = SettingsConfigDict(env_prefix="FORGEWATCH_INGEST_", frozen=True)

    bootstrap_servers: Annotated[str, _BROKERS] = Field(
        "127.0.0.1:9092", description="Kafka brokers, host:port, separated by commas"
    )
    security_protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = Field(
        "PLAINTEXT", description="how to speak to the brokers"
    )
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] | None = Field(
        None, description="SASL mechanism, where the protocol has SASL"
    )
    sasl_username: str | None = Field(None, description="SASL user")
    sasl_password: SecretStr | None = Field(None, description="SASL password")
    ssl_cafile: KeyFile | None = Field(None, description="PEM file of the authorities that sign the brokers")
    ssl_certfile: KeyFile | None = Field(None, description="PEM file of this client's certificate")
    ssl_keyfile: KeyFile | None = Field(None, description="PEM file of this client's key")
    ssl_password: SecretStr | None = Field(None, description="password of the client's key")
    topic_prefix: str = Field(
        "forgewatch",
        pattern="^[a-zA-Z0-9._-]{1,200}$",
        description="the prefix of all topics' names: forgewatch.media, forgewatch.verdicts and so on",
    )
    claim_check_dir: Path | None = Field(None, description="folder that datarefs point into; unset: refused")
    max_media_bytes: int = Field(8_388_608, gt=0, description="largest record of the media topic, bytes")
    max_fetched_bytes: int = Field(104_857_600, gt=0, description="largest media file by dataref, bytes")
    max_pixels: int = Field(
        50_500_000,
        gt=0,
        description="most pixels of one image or frame; fewer where each takes more than three bytes",
    )
    decode_processes: int = Field(1, ge=1, description="decoding processes of one worker")

    def topic(self, name: str) -> str:
        """The topic of this name, such as `verdicts`, of this installation."""
        return f"{self.topic_prefix}.{name}"

    @property
    def media_topic(self) -> str:
        return self.topic("media")

    @property
    def dead_letters_topic(self) -> str:
        return self.topic("dead-letters")

    @property
    def max_record_bytes(self) -> int:
        """Largest record that topics beyond the media topic must carry, bytes."""
        return self.max_media_bytes + HEADER_ROOM_BYTES
