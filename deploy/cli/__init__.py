"""The command `forgewatch`: a file a group of commands."""
