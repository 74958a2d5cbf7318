"""The figures of ForgeryNet's tasks, as pure functions of numpy arrays: one kind of answer a file."""
