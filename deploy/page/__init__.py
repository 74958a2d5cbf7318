"""The operators' page: views that the server renders, with one style and one script of its own."""
