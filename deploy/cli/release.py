"""`forgewatch release`: a release's evidence, its signature, or, by `export`, the release for other tools."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperGroup

from deploy.cli.output import CommandError, client, say, short
from deploy.cli.releases import Digest, release
from deploy.settings import DeploySettings

if TYPE_CHECKING:
    from detector.release.artifact import Artifact

_SHOW = "show"


class _ShowByDefault(TyperGroup):
    """`forgewatch release DIGEST` is `forgewatch release show DIGEST`: no digest begins like a command."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not args or args[0] not in (*self.commands, "--help"):
            args = [_SHOW, *args]
        return super().parse_args(ctx, args)


app = typer.Typer(cls=_ShowByDefault, help="Show a release's evidence, or write it for other tools.")
app.command(_SHOW)(release)


@app.command()
def export(
    digest: Digest,
    mlflow: Annotated[
        Path, typer.Option(metavar="DIR", help="folder of an MLflow registry, which is made where it lacks")
    ],
) -> None:
    """Write a release as a version of the MLflow model `forgewatch`, with the aliases of what serves now."""
    # Only here: it brings what reads artifacts.
    from deploy.client.mlflow import NAME
    from deploy.client.mlflow import export as write
    from detector.settings import DetectorSettings

    with client() as api:
        found = api.release(api.full_digest(digest))
        rollout = api.rollout()
    artifact = _fetch_release(found.digest, DetectorSettings().trusted_signers)
    version = write(artifact, mlflow, rollout, found.state)
    say(f"{short(found.digest)} is version {version} of the model {NAME} in {mlflow}")


@app.command()
def sign(
    digest: Digest,
    key: Annotated[Path, typer.Option(metavar="FILE", help="PEM file of the private key that signs it")],
) -> None:
    """Sign a release that was not signed, or whose signer is no longer to be trusted.

    Deploy replaces a signature where its own FORGEWATCH_DETECTOR_TRUSTED_SIGNERS has the key's certificate.
    """
    from detector.release.artifact import SIGNATURE
    from detector.release.signature import SigningKeyError
    from detector.release.signature import sign as write

    with client() as api:
        # Its signature may be the very thing that is wrong with it.
        artifact = _fetch_release(api.full_digest(digest), signers=None)
        try:
            write(artifact, key)
        except SigningKeyError as error:
            raise CommandError(str(error)) from error
        signature = (artifact.folder / SIGNATURE).read_bytes()
        api.put_signature(artifact.digest, signature)
        if api.file(artifact.digest, SIGNATURE) != signature:
            raise CommandError("deploy trusts no signer, so it keeps the signature that the release has")
    say(f"{short(artifact.digest)} is signed with {key}")


def _fetch_release(digest: str, signers: Path | None) -> "Artifact":
    from detector.release.manifest import ArtifactError
    from detector.serving.rollout_source import FetchError, fetch
    from detector.settings import DetectorSettings

    settings = DeploySettings()
    where = DetectorSettings().model_copy(
        update={"deploy_url": settings.url, "deploy_token": settings.token, "trusted_signers": signers}
    )
    try:
        return fetch(digest, settings.cache_dir, where)
    except (FetchError, ArtifactError) as error:
        raise CommandError(f"the release cannot be fetched: {error}") from error
