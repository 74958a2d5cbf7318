"""Notices to webhooks of needed and taken decisions: derived from the record, sent at least once."""
