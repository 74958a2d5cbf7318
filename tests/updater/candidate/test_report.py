from updater.candidate.report import evaluation_markdown, model_card
from updater.records import FoundStretches, Lost, RealsMarked, Robustness, ScannerFound


def test_the_page_says_on_how_many_of_how_many_was_measured(make_evaluation):
    evaluation = make_evaluation()
    assert "| blend (new) | 20 |" in evaluation_markdown(evaluation)
    some = evaluation.model_copy(update={"resting": {"test": {"blend": 480}, "calibration": {"real": 7}}})
    page = evaluation_markdown(some)
    assert "| blend (new) | 20 of 500 |" in page
    assert "| real | 20 |" in page


def test_page_and_card_say_what_each_distortion_costs_before_and_after_of_the_classes_of_before(
    make_evaluation,
):
    evaluation = make_evaluation(("real", "blend", "gan"), "a" * 64, ("real", "blend"))
    evaluation = evaluation.model_copy(update={"items": {"train": {}, "calibration": {}, "test": {}}})

    def under(one, real, gan):
        shares = {"real": real, "blend": 0.5, "gan": gan}
        found = Robustness(
            items=dict.fromkeys(shares, 8),
            undistorted=dict.fromkeys(shares, 0.75),
            distorted=dict.fromkeys(("CS:1", "CS:3", "GB:1", "GB:3"), shares),
            lost=Lost(share=0.1, low=0.02, high=0.18, reals=8, forgeries=8),
        )
        return one.model_copy(update={"robustness": found})

    measured = evaluation.model_copy(
        update={"before": under(evaluation.before, 0.9, 0.0), "after": under(evaluation.after, 0.7, 1.0)}
    )
    for text in (evaluation_markdown(measured), model_card(measured)):
        assert "| accuracy, % | level 1 | level 3 |" in text
        assert "| GB | 70.0 → 60.0 | 70.0 → 60.0 |" in text
        # With the new family: (0.7 + 0.75) / 2.
        assert (
            "it fell by 10.0 points [2.0 to 18.0, 95 % confidence in either end] on 8 real and 8 forged"
            in text
        )
        assert "its accuracy is 72.5 % on average, and on the same 24 held-back items" in text
    for text in (evaluation_markdown(evaluation), model_card(evaluation)):
        assert "accuracy, %" not in text


def test_page_and_card_say_how_often_a_map_marks_a_real_picture(make_evaluation):
    evaluation = make_evaluation().model_copy(update={"items": {"train": {}, "calibration": {}, "test": {}}})
    marking = evaluation.model_copy(update={"reals_marked": RealsMarked(share=0.125, reals=24)})
    for text in (evaluation_markdown(marking), model_card(marking)):
        assert "Its maps mark 12.5 % of 24 real pictures, on more than 2 % of their cells" in text
    assert "Its maps" not in evaluation_markdown(evaluation)
    assert "does not say where a picture is forged" in model_card(evaluation)


def test_page_and_card_say_how_what_says_when_a_video_is_forged_fared(make_evaluation):
    plain = make_evaluation(("real", "blend"), "a" * 64, ("real", "blend"))
    plain = plain.model_copy(update={"items": {"train": {}, "calibration": {}, "test": {}}})
    found = ScannerFound(reals=50, reals_told=0.04, forged=48, stretches=90, found=0.3, ap_50=0.431)
    measured = plain.model_copy(update={"scanner": found})
    for text in (evaluation_markdown(measured), model_card(measured)):
        assert (
            "Of 50 real clips, simulated from held-back real pictures, a forged stretch is told in 4.0 %"
            in text
        )
        assert "the 90 stretches of 48 such clips with pseudo-forgeries, 30.0 % are told" in text
        assert "ap_0.5 is 0.431" in text
    assert "real clips" not in evaluation_markdown(plain)
    assert "it has no scanner" in model_card(plain)


def test_page_and_card_say_on_how_many_real_videos_a_scanner_rests(make_evaluation):
    plain = make_evaluation().model_copy(update={"items": {"train": {}, "calibration": {}, "test": {}}})
    without = ScannerFound(reals=50, reals_told=0.04, forged=48, stretches=90, found=0.3, ap_50=0.431)
    of_videos = FoundStretches(reals=16, reals_told=0.125, forged=16, stretches=30, found=0.2, ap_50=0.3)
    found = without.model_copy(update={"learnt_library": 48, "held_library": 21, "library": of_videos})
    for make in (evaluation_markdown, model_card):
        text = make(plain.model_copy(update={"scanner": found}))
        assert "It learnt from 48 clips of real videos" in text
        assert "set on 21 real videos too" in text
        assert "Of 16 real videos of the test split, a stretch is told in 12.5 %" in text
        assert "of 30 pseudo-forged stretches in them 20.0 % are told" in text
        text = make(plain.model_copy(update={"scanner": without}))
        assert "It learnt from 0 clips of real videos" in text
        assert "simulated clips alone" in text
