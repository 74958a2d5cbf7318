"""How accurate the verdicts are, without labels and with a few: by class and by source, with intervals."""
