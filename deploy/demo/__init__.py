"""The demonstration: the whole loop, told and counted."""
