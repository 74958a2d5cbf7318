"""Streams of tasks: continual learning and rejection, measured."""
