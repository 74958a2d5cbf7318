"""An operator approves a candidate of a deploy server that a test runs."""

import httpx

from updater.records import Candidate


def approve(url: str, digest: str) -> None:
    """Approve the candidate by its evaluation, over the API. Raises httpx.HTTPError."""
    (found,) = [
        Candidate.model_validate(one["candidate"])
        for one in httpx.get(f"{url}/releases").json()
        if one["candidate"]["digest"] == digest
    ]
    httpx.post(
        f"{url}/releases/{digest}/approve",
        json={"evaluation_digest": found.evaluation_digest},
        headers={"X-Forgewatch-Actor": "ann"},
    ).raise_for_status()
