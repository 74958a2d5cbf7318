"""`forgewatch release`: a release's evidence, or, by `export`, the release for other tools."""

from pathlib import Path
from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from deploy.cli.output import CommandError, client, say, short
from deploy.cli.releases import Digest, release
from deploy.settings import DeploySettings

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
    from detector.release.manifest import ArtifactError
    from detector.serving.rollout_source import FetchError, fetch
    from detector.settings import DetectorSettings

    settings = DeploySettings()
    with client() as api:
        found = api.release(api.full_digest(digest))
        rollout = api.rollout()
    where = DetectorSettings().model_copy(update={"deploy_url": settings.url, "deploy_token": settings.token})
    try:
        artifact = fetch(found.digest, settings.cache_dir, where)
    except (FetchError, ArtifactError) as error:
        raise CommandError(f"the release cannot be fetched: {error}") from error
    version = write(artifact, mlflow, rollout, found.state)
    say(f"{short(found.digest)} is version {version} of the model {NAME} in {mlflow}")
