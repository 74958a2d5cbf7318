from updater.candidate.outlook import FAKE_GROUPS, LEAST, UNKNOWN_GROUPS, outlook, reals_wanted
from updater.candidate.thresholds import TARGETS, conservative_share


def test_below_so_many_groups_no_real_may_lie_above_a_threshold_so_it_is_their_maximum():
    for groups, share in ((UNKNOWN_GROUPS, TARGETS.reals_unknown), (FAKE_GROUPS, TARGETS.reals_fake)):
        assert conservative_share(groups - 1, share, TARGETS.confidence) == 0
        assert conservative_share(groups, share, TARGETS.confidence) > 0


def test_it_says_which_threshold_is_a_maximum_and_how_many_reals_would_mend_that():
    def of(groups):
        return " ".join(outlook({"a": {"calibration": groups - 10}, "b": {"calibration": 10}}, {}).told)

    assert "on 74 groups of reals" in of(74)
    assert "maximum" not in of(74)
    assert "With fewer than 74, the reals' quantile in the threshold of fake is their maximum" in of(70)
    assert "With fewer than 65, the reals' quantile in the threshold of unknown and of fake" in of(64)
    assert "About 225 more reals" in of(20)


def test_a_source_with_few_groups_and_a_class_with_few_items_are_told_with_what_each_lacks():
    enough = dict.fromkeys(LEAST, 30)
    few = {"train": 3, "calibration": 2}
    told = outlook({"camera": {"calibration": 19}, "web": {"calibration": 20}}, {"real": enough, "gan": few})
    assert told.waiting == {"gan": {"train": 5, "test": 2}}
    text = " ".join(told.told)
    assert "camera (about 5 more reals)" in text
    assert "web (" not in text
    assert "gan will not be learnt yet: it lacks 5 for train, 2 for test" in text
    assert "label about 10 more" in text
    assert "It will know" not in text


def test_what_will_be_learnt_is_named_and_reals_that_are_too_few_stop_everything():
    enough, none = dict.fromkeys(LEAST, 30), {"train": 1}
    assert "It will know gan; every other" in outlook({}, {"real": enough, "gan": enough}).told[-1]
    assert "Nothing can be learnt yet: reals lack" in " ".join(outlook({}, {"real": none}).told)


def test_only_sources_that_lack_groups_are_wanted_from_the_most_first():
    groups = {"a": {"calibration": 15}, "b": {"calibration": 2}, "c": {"calibration": 40}}
    assert reals_wanted(groups, ["a", "b", "c", "new"]) == [("new", 100), ("b", 90), ("a", 25)]
