import json

from updater.benchmark.costs.shift_power import measure, power_json


def test_what_shifts_further_takes_fewer_items_and_the_closed_form_is_dprime_squared() -> None:
    found = list(measure(200, 6, 0, (0.7, 0.9), lambda *at: None))
    # At 0.90 d' is sqrt(2) * 1.2816 = 1.812, so (4 / 1.812) ** 2 = 4.87; at 0.70 it is 0.7416.
    assert [round(one.closed_form, 1) for one in found] == [29.1, 4.9]
    weak, strong = found
    assert strong.median < weak.median
    assert strong.low <= strong.median <= strong.high
    assert json.loads(power_json(found, 200, 6, 0))["power"][1]["item_auc"] == 0.9
