"""How long and how fast an update trains: its usual recipe, and what the settings say otherwise. Pure."""

from dataclasses import dataclass, replace

from detector.release.architecture import NO_BACKBONE, Architecture
from updater.settings import UpdaterSettings
from updater.training.schedules import Augment, Schedule
from updater.training.step import Recipe


@dataclass(frozen=True)
class TrainingSettings:
    """What is set of an update's training; of everything that is None the usual recipe decides."""

    epochs: float | None = None
    """times that an item is drawn to train the network: whole, or without a backbone its head"""
    head_epochs: float | None = None
    """and to train what lies above a backbone after that"""
    rate: float | None = None
    """highest learning rate, of the stage that `epochs` are of"""
    batch: int | None = None
    """items of a training step"""
    augment: Augment = "none"
    """what is done to crops while a backbone is trained; they are shifted by an eighth of their side"""
    schedule: Schedule = "one-cycle"

    @staticmethod
    def of(settings: UpdaterSettings) -> "TrainingSettings":
        """Return what the settings say."""
        return TrainingSettings(
            settings.epochs,
            settings.head_epochs,
            settings.rate,
            settings.batch,
            settings.augment,
            settings.rate_schedule,
        )

    def recipe(self, usual: Recipe, items: int, architecture: Architecture) -> Recipe:
        """Return the recipe for so many items.

        An item is drawn with its share of pseudo-forgeries. There is at least one step of what is trained.
        """
        batch = self.batch or usual.batch
        drawn = items * (1 + usual.pseudo_share) / batch

        def steps(epochs: float | None, otherwise: int) -> int:
            return otherwise if epochs is None else max(1 if epochs else 0, round(epochs * drawn))

        made = replace(usual, batch=batch, schedule=self.schedule)
        if architecture.backbone == NO_BACKBONE:
            return replace(
                made,
                balanced_steps=steps(self.epochs, usual.balanced_steps),
                balanced_rate=self.rate or usual.balanced_rate,
            )
        return replace(
            made,
            backbone_steps=steps(self.epochs, usual.backbone_steps),
            backbone_rate=self.rate or usual.backbone_rate,
            balanced_steps=steps(self.head_epochs, usual.balanced_steps),
        ).augmented(self.augment, architecture.crop_px)
