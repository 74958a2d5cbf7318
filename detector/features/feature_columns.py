"""Which columns of the forensic features are of which group. No torch here: the memory reads it too."""

import itertools

_WIDTHS = {
    "residuals": 42,
    "autocorrelation": 30,
    "spectrum": 37,
    "blocks": 127,
    "grid": 28,
    "local noise": 18,
    "edges": 18,
    "colour": 42,
}
"""Of the groups of features, in their order."""
WIDTH = sum(_WIDTHS.values())
_TRACES = ("residuals", "spectrum", "local noise", "edges")
_ENDS = dict(zip(_WIDTHS, itertools.accumulate(_WIDTHS.values()), strict=True))
TRACES: tuple[slice, ...] = tuple(slice(_ENDS[name] - _WIDTHS[name], _ENDS[name]) for name in _TRACES)
"""The columns of those groups that each see one kind of trace: a forgery that disturbs one group alone is
drowned in a distance over all columns."""
