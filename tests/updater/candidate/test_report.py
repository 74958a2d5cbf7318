from updater.candidate.report import evaluation_markdown


def test_the_page_says_on_how_many_of_how_many_was_measured(make_evaluation):
    evaluation = make_evaluation()
    assert "| blend (new) | 20 |" in evaluation_markdown(evaluation)
    some = evaluation.model_copy(update={"resting": {"test": {"blend": 480}, "calibration": {"real": 7}}})
    page = evaluation_markdown(some)
    assert "| blend (new) | 20 of 500 |" in page
    assert "| real | 20 |" in page
