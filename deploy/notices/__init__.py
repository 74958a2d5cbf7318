"""Webhooks are told what needs a person, or was decided: derived from the record, sent at least once."""
