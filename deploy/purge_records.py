"""What the API takes and answers about sources that leave the memory."""

from collections.abc import Mapping

from pydantic import AwareDatetime, BaseModel, Field

from memory.records import Shelf


class PurgePreview(BaseModel):
    """What a purge of a source would take."""

    source: str
    exemplars: Mapping[Shelf, int] = Field(description="its items in the memory, by shelf")
    clusters: int = Field(description="clusters that wait and show an item of it")
    releases: tuple[str, ...] = Field(
        description="digests of releases that learnt from it, or from one that did; they keep that"
    )
    unsaid: tuple[str, ...] = Field(description="digests of releases whose training data are not known")
    updates: list[int] = Field(description="updates that have begun, and would end")
    blocked: bool = Field(description="whether it is no longer remembered")
    version: str = Field(description="of this preview: give it to begin")


class PurgeRequest(BaseModel):
    """Which source is to leave."""

    source: str = Field(min_length=1, max_length=1000)
    block: bool = Field(False, description="remember nothing of it from now on")
    version: str | None = Field(None, description="the preview's, to begin; null continues the purge")


class PurgeDone(BaseModel):
    """What one request did."""

    purged: int = Field(description="exemplars that were emptied")
    left: int = Field(description="exemplars that wait for the next request")
    stopped: list[int] = Field(description="updates that ended")


class BlockedEntry(BaseModel):
    """A source that is no longer remembered."""

    source: str
    at: AwareDatetime
    actor: str


class UnblockRequest(BaseModel):
    """Which source is to be remembered again."""

    source: str = Field(min_length=1, max_length=1000)
