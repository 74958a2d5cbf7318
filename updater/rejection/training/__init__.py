"""Rejection that is trained for, by another loss, another batch or a head of its own; one method a file."""
