"""The layouts of published sets of forged pictures and videos, each read to a listing of its files."""
