"""Opens a database for any room that keeps rows, and brings its tables to today's layout, by Alembic."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from alembic import command
from alembic.config import Config
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, create_engine, event, text
from sqlalchemy.engine import URL, make_url
from sqlalchemy.exc import ArgumentError, NoSuchModuleError

from ingest.durable import make_folder
from ingest.process.frame import WrongSettingError

_LOCK_WAIT_S = 30
READS = "forgewatch_reads"
"""Execution option of an engine or a connection that only reads: on SQLite it then waits for no writer."""


_ENCODED = "write @ : / ? # % and spaces of its user, password and name as %40 %3A %2F %3F %23 %25 and %20"


def read_url(database_url: str) -> tuple[URL, dict[str, Any]]:
    """Return SQLAlchemy's URL and the driver's further arguments.

    Of PostgreSQL libpq reads all that it takes: URLs, or NAME=VALUE pairs, with socket folders, several
    hosts, services and parameters. Raises ArgumentError, which tells nothing of the URL, for a password may
    be in it; ImportError without psycopg.
    """
    scheme, _, rest = database_url.partition("://")
    pairs = "=" in scheme
    if not pairs and scheme not in ("postgres", "postgresql", "postgresql+psycopg"):
        try:
            url = make_url(database_url)
        except ValueError:  # it quotes what it takes for the port
            raise ArgumentError(f"it has no port that is a number: {_ENCODED}") from None
        if url.get_backend_name() == "sqlite" and url.database in (None, "", ":memory:"):
            raise ArgumentError("an SQLite file is needed: several processes open it")
        return url, {}
    import psycopg
    from psycopg.conninfo import conninfo_to_dict

    authority, _, path = rest.partition("?")[0].partition("/")
    try:
        options = conninfo_to_dict(database_url if pairs else f"postgresql://{rest}")
    except psycopg.Error:  # it quotes what it does not read
        raise ArgumentError(f"libpq does not read it: {_ENCODED}") from None
    hosts, ports = (str(options.get(name) or "").split(",") for name in ("host", "port"))
    valid = all(port.isdecimal() and int(port) <= 65535 for port in ports if port)
    valid = valid and len(ports) in (1, len(hosts)) and "@" not in "".join(hosts)
    if not valid or (not pairs and ("@" in path or authority.count("@") > 1)):
        raise ArgumentError(f"it has no host and port that can be told from the rest: {_ENCODED}")
    at = {"username": options.get("user"), "host": options.get("host"), "database": options.get("dbname")}
    return URL.create("postgresql+psycopg", **at), options  # type: ignore[arg-type]


def show_url(database_url: str) -> str:
    """Return where a database lies, without its password and parameters. Raises as `read_url` does."""
    return read_url(database_url)[0].set(query={}).render_as_string(hide_password=True)


def require_openable(setting: str, database_url: str) -> None:
    """Raise WrongSettingError, with the setting's name, where `open_engine` takes no such URL.

    The URL is not told: a password may be in it.
    """
    try:
        url, _ = read_url(database_url)
        url.get_dialect().import_dbapi()
    except (ArgumentError, NoSuchModuleError) as error:
        problem = "it begins otherwise" if isinstance(error, NoSuchModuleError) else error
        raise WrongSettingError(setting, f"it is no database URL that is known here: {problem}") from None
    except ImportError as error:
        raise WrongSettingError(setting, f"the database's driver is not installed: {error}") from error


def folder_of(database_url: str) -> Path | None:
    """Return the folder of an SQLite file; None for a database that a server keeps."""
    url, _ = read_url(database_url)
    return Path(str(url.database)).parent if url.get_backend_name() == "sqlite" else None


def cause_of(error: Exception) -> str:
    """Return the error of a database or its driver in one line: without the statement and its values."""
    return " ".join(str(getattr(error, "orig", None) or error).split())


def open_engine(database_url: str) -> Engine:
    """Return an engine for an SQLAlchemy URL; an SQLite file is made where it is missing.

    SQLite runs in WAL with synchronous=FULL, so what was committed survives a power cut. A transaction takes
    the one write lock as it begins, unless it has the option READS. PostgreSQL's driver is the caller's.
    No wait for PostgreSQL by psycopg is without a bound (memory.postgresql).

    Raises SQLAlchemyError (also for SQLite without a file), OSError, ImportError (no driver for the URL).
    """
    url, options = read_url(database_url)
    if url.get_backend_name() != "sqlite":
        engine = create_engine(url, connect_args=options, pool_pre_ping=True)
        if engine.driver == "psycopg":
            from memory.postgresql import bound_waits

            bound_waits(engine, READS)
        return engine
    folder = Path(str(url.database)).parent
    make_folder(folder)
    engine = create_engine(url, connect_args={"timeout": _LOCK_WAIT_S})
    event.listen(engine, "connect", partial(_make_durable, folder))
    event.listen(engine, "begin", _begin)
    return engine


def _make_durable(folder: Path, connection: Any, _record: object) -> None:
    # The driver must not open transactions by itself: it would open them as readers, and a reader
    # that turns into a writer is refused at once, without waiting for the lock.
    connection.isolation_level = None
    with _alone_in(folder):
        connection.execute("PRAGMA journal_mode=WAL").close()
    for pragma in ("synchronous=FULL", "foreign_keys=ON"):
        connection.execute(f"PRAGMA {pragma}").close()


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait for the other processes that open a database here.

    While a new file becomes WAL, SQLite waits for nobody: of several that open it at once, some are refused.
    """
    # Of the folder: to close any descriptor of the file itself would drop SQLite's own locks on it.
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _begin(connection: Connection) -> None:
    reads = connection.get_execution_options().get(READS, False)
    connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")


_LOCK = 0x666F7267  # any number, the same for everyone


class UnknownLayoutError(Exception):
    """The database has a layout that this version does not know. Fatal."""


def migrate(connection: Connection, package: str) -> tuple[str | None, str]:
    """Apply the revisions in package's versions/ that the database lacks, in the caller's transaction.

    All of them or none, once, however many processes start together. Each package keeps its place in a table
    of its own, so that one database may hold several rooms. Returns the layout before, None for an empty
    database, and the one after. Raises UnknownLayoutError, and SQLAlchemyError where the database refuses.
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
            " a newer Forgewatch wrote it, or one from before 0.1.0"
        )
    hurry: AbstractContextManager[None] = nullcontext()
    if connection.dialect.driver == "psycopg":
        from memory.postgresql import without_statement_timeout

        hurry = without_statement_timeout(connection)
    with hurry:
        command.upgrade(config, "head")
    return revision, head


def _config(connection: Connection, package: str) -> Config:
    config = Config()
    room, *below = package.split(".")
    config.set_main_option("script_location", _option(files("memory").joinpath("migrations")))
    config.set_main_option("path_separator", "newline")
    config.set_main_option("version_locations", _option(files(room).joinpath(*below, "versions")))
    config.attributes["connection"] = connection
    config.attributes["version_table"] = f"{room}_layout"
    return config


def _option(folder: Traversable) -> str:
    # The options are interpolated as an ini file's would be.
    return str(folder).replace("%", "%%")
