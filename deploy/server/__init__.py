"""The deploy server: one router a subject."""
