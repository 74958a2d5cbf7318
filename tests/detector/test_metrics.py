from prometheus_client import REGISTRY, generate_latest

from detector.metrics import ENERGY, SERVING, UNKNOWN_SCORE, VERDICTS, forget_release


def lines_about(release: str) -> list[str]:
    return [
        line for line in generate_latest(REGISTRY).decode().splitlines() if f'release="{release}"' in line
    ]


def test_a_retired_release_leaves_no_series_behind() -> None:
    for release in ("retired", "live"):
        for label in ("real", "fake", "unknown"):
            VERDICTS.labels(label, release).inc()
        ENERGY.labels(release).observe(-3)
        UNKNOWN_SCORE.labels(release).observe(1)
        SERVING.labels(release).set(1)
    forget_release("retired")
    assert lines_about("retired") == []
    assert len(lines_about("live")) > 10
    forget_release("live")


def test_forgetting_a_release_that_never_scored_is_no_error() -> None:
    forget_release("never seen")
