"""A benchmark's run with nothing but what a test of reports is about."""

from typing import Any

from updater.benchmark.report.results import Figures, Run, Step


def make_run(seed: int, figures: Figures, **rest: Any) -> Run:
    """Return a run of one task with these figures."""
    return Run(
        benchmark="cddb",
        stream="cddb-hard",
        stream_digest="ab" * 32,
        command=("forgewatch",),
        options={},
        versions={},
        device="cpu",
        seed=seed,
        tasks=("gaugan",),
        matrix=((90.0,),),
        steps=(Step(task="gaugan", figures=Figures(), seconds={}),),
        figures=figures,
        **rest,
    )
