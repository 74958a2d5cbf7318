"""Whether the items of a source that are called real have shifted, or its verdicts have drifted."""
