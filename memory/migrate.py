"""Brings any room's tables to the layout that the code knows, by Alembic revisions."""

from importlib.resources import files

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, inspect, text

_FIRST = "0001"
_LOCK_WAIT_S = 30
_LOCK = 0x666F7267  # any number, the same for everyone


class UnknownLayoutError(Exception):
    """The database was written by a newer version, whose layout this one does not know. Fatal."""


def migrate(connection: Connection, package: str, first_table: str) -> tuple[str | None, str]:
    """Apply the revisions in package's versions/ that the database lacks, in the caller's transaction.

    All of them or none, once, however many processes start together. first_table is one that the first
    revision makes: a database that has it but no revision was made before there were any, and is taken
    to be at the first. Each package keeps its place in a table of its own, so that one database may hold
    several rooms. Returns the layout that was found, None for a database without these tables, and the one
    that is there now. Raises UnknownLayoutError, and SQLAlchemyError where the database refuses.
    """
    if connection.dialect.name == "postgresql":
        # An older process that holds one of the tables must not make all others queue up behind us.
        connection.execute(text(f"SET LOCAL lock_timeout = '{_LOCK_WAIT_S}s'"))
        # Looking and making are two steps; the lock lasts until the transaction ends.
        connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": _LOCK})
    config = _config(connection, package)
    script = ScriptDirectory.from_config(config)
    options = {"version_table": config.attributes["version_table"]}
    revision = MigrationContext.configure(connection, opts=options).get_current_revision()
    head = script.get_current_head()
    assert head is not None, "every room has a first revision"
    if revision == head:
        return revision, head
    if revision not in {None, *(known.revision for known in script.walk_revisions())}:
        raise UnknownLayoutError(
            f"the database has layout {revision} of {package}, which this version does not know:"
            " it was written by a newer Forgewatch"
        )
    if revision is None and inspect(connection).has_table(first_table):
        command.stamp(config, revision := _FIRST)
    command.upgrade(config, "head")
    return revision, head


def _config(connection: Connection, package: str) -> Config:
    config = Config()
    config.set_main_option("script_location", _option(str(files("memory.migrations"))))
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", _option(str(files(f"{package}.versions"))))
    config.attributes["connection"] = connection
    config.attributes["version_table"] = f"{package.split('.')[0]}_layout"
    return config


def _option(value: str) -> str:
    # The options are interpolated as an ini file's would be.
    return value.replace("%", "%%")
