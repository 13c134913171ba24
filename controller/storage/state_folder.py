"""Opens the files of a controller's state folder, or refuses files that do not belong together.

``controller.db`` has an id and the number of its last write, ``controller.check`` beside it the
same. So a file without its newest changes, which are in ``controller.db-wal`` until the controller
ends, is not mistaken for the whole. An empty ``controller.check`` accepts any file.
"""

import contextlib
import os
import sqlite3
import stat
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

from patchlight.controller.storage.series_store import SeriesStore
from patchlight.controller.storage.store import Store
from patchlight.testbed.errors import PatchlightError
from patchlight.testbed.linux.files import private_folder

DATABASE = "controller.db"
SAMPLES = "samples.db"
CHECK = "controller.check"
_LOGS = f"{DATABASE}-wal", f"{DATABASE}-shm"
# What only an earlier controller can have left.
_LEFT = (SAMPLES, f"{SAMPLES}-wal", f"{SAMPLES}-shm", "outputs", *_LOGS)

# Not versions of the schema: older versions of Patchlight leave these tables alone.
_STATE = """
CREATE TABLE IF NOT EXISTS state (lab TEXT NOT NULL, writes INTEGER NOT NULL);
INSERT INTO state SELECT lower(hex(randomblob(16))), 0 WHERE NOT EXISTS (SELECT 1 FROM state);
"""
_LAB = "CREATE TABLE IF NOT EXISTS lab (id TEXT NOT NULL)"

LastWrite = tuple[str, int]
"""The id of a lab's database, and the number of its last write."""


class CheckFile:
    """The id and the number of the last write, outside of the database.

    It is written after each write, and not synchronised: a power cut may leave an older number,
    which is harmless.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lab = ""
        self._file = -1

    @property
    def exists(self) -> bool:
        """Whether a lab was here. An empty file is of a first start, or accepts any database."""
        with contextlib.suppress(OSError):
            return bool(self.path.read_bytes().strip(b"\0\n "))
        return False

    def read(self) -> LastWrite | None:
        """Its content; ``None`` if it cannot be read."""
        try:
            lab, number = self.path.read_text("ascii").split()
            return lab, int(number)
        except (OSError, ValueError):
            return None

    def begin(self) -> None:
        """Create it, still empty."""
        self._file = os.open(
            self.path, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600
        )

    def note(self, number: int, lab: str = "") -> None:
        """Write the number of the last write (of this lab from now on)."""
        self._lab = lab or self._lab
        with contextlib.suppress(OSError):  # a full disk, say
            os.pwrite(self._file, f"{self._lab} {number:020}\n".encode(), 0)

    def close(self) -> None:
        """Close the file."""
        if self._file >= 0:
            os.close(self._file)
            self._file = -1


def _refuse_what_is_no_file(state_dir: Path, *names: str) -> None:
    """``PatchlightError`` for a folder, a FIFO or the like, which may block who opens it, and for
    ``controller.check`` as a link, which is never written through."""
    for name in names:
        path = state_dir / name
        try:
            mode = (
                path.lstat().st_mode if name == CHECK else path.stat().st_mode
            )
        except OSError:  # missing, or opening it says why
            continue
        if not stat.S_ISREG(mode):
            raise PatchlightError(
                f"{path} is not a file: expected a file, or nothing, at this path",
                hint="move it away, and restore a backup (patchlight controller restore)",
            )


def open_store(state_dir: Path) -> Store:
    """The store in a directory, created if missing, for its owner only. ``PatchlightError`` if an
    earlier controller's newest records are missing."""
    path = state_dir / DATABASE
    check = CheckFile(state_dir / CHECK)
    try:
        private_folder(state_dir, 0o750)
    except OSError as error:
        raise _not_kept(state_dir, error) from error
    _refuse_what_is_no_file(
        state_dir,
        DATABASE,
        *_LOGS,
        CHECK,
    )
    is_new = not path.exists() or not path.stat().st_size
    beside = [name for name in _LEFT if (state_dir / name).exists()]
    beside += [CHECK] if check.exists else []
    if is_new and beside:
        raise _refusal(
            f"{path} is {'empty' if path.exists() else 'missing'}, but an earlier controller "
            f"left {' and '.join(beside)}: its journal, committed maps, locks and jobs are "
            f"missing",
            state_dir,
        )
    if not is_new:
        _refuse_what_lacks_records(state_dir, check, beside)
    try:
        check.begin()
        if is_new:
            _create(path)
    except OSError as error:
        raise _not_kept(state_dir, error) from error
    store = Store(private_file(state_dir, DATABASE), check.note, check.close)
    store.script(_STATE)
    lab, writes = store.rows("SELECT lab, writes FROM state")[0]
    store.lab_id = lab
    check.note(writes, lab)
    return store


def open_series(state_dir: Path, lab_id: str = "") -> SeriesStore:
    """The time series in a controller's folder, readable by its owner only. They may be lost;
    ``PatchlightError`` for unreadable ones, and those of another lab's database."""
    path = state_dir / SAMPLES
    _refuse_what_is_no_file(
        state_dir,
        SAMPLES,
        f"{SAMPLES}-wal",
        f"{SAMPLES}-shm",
    )
    hint = f"move {path} away: only its time series are lost"
    if path.exists() and path.stat().st_size:
        _looked_at(path, hint)
    series = SeriesStore(private_file(state_dir, SAMPLES))
    series.script(_LAB)
    known = [lab for (lab,) in series.rows("SELECT id FROM lab")]
    if lab_id and not known:
        series.write("INSERT INTO lab VALUES (?)", lab_id)
    elif lab_id and known != [lab_id]:
        series.close()
        raise PatchlightError(
            f"{path} has the time series of another lab's {DATABASE}",
            hint=hint,
        )
    return series


def _create(path: Path) -> None:
    """Create a database, which has all tables from the moment it exists."""
    _remove_cut_short(path)
    made = path.with_name(f"{path.name}.new-{os.getpid()}")
    made.unlink(missing_ok=True)
    made.touch(mode=0o600)
    store = Store(made)
    store.script(_STATE)
    store.close()
    if path.exists():  # empty
        made.replace(path)
        return
    with contextlib.suppress(FileExistsError):  # another process was faster
        path.hardlink_to(made)
    made.unlink()


def _remove_cut_short(path: Path) -> None:
    """Remove the files of processes that were killed while they created the
    database."""
    for left in path.parent.glob(f"{path.name}.new-*"):
        pid = left.name.removeprefix(f"{path.name}.new-").partition("-")[0]
        if not Path("/proc", pid).exists():
            left.unlink(missing_ok=True)


def _refuse_what_lacks_records(
    state_dir: Path,
    check: CheckFile,
    beside: list[str],
) -> None:
    path = state_dir / DATABASE
    wal = f"{DATABASE}-wal"
    known = check.read()
    # An older version's first start.
    cut_short = wal in beside and set(_LOGS).issuperset(beside)
    found = _looked_at(path, _remedy(state_dir))
    if found is None:
        if not cut_short:
            raise _refusal(
                f"{path} has no tables: they were in {wal}, which is gone",
                state_dir,
            )
        return
    lab, writes = found
    if not check.exists and check.path.exists():
        return  # accepted
    if known is None:
        if lab:
            raise _refusal(
                f"{path} has no {CHECK} beside it: a copy of some files of a controller's "
                "state may lack the newest changes",
                state_dir,
            )
    elif lab != known[0]:
        raise _refusal(
            f"{path} and {check.path} do not belong together", state_dir
        )
    elif writes < known[1]:
        raise _refusal(
            f"{path} lacks the last {known[1] - writes} writes: {wal} is missing or damaged, or "
            "the file is an older copy",
            state_dir,
        )


def _looked_at(path: Path, hint: str) -> LastWrite | None:
    """The last write that a file has, with an empty id in files of older versions; ``None`` without
    tables. Nothing is written. ``PatchlightError`` if it is damaged."""
    # Otherwise an empty log would be created.
    whole = (
        "" if path.with_name(f"{path.name}-wal").exists() else "&immutable=1"
    )
    try:
        with closing(
            sqlite3.connect(
                f"file:{quote(str(path))}?mode=ro{whole}", uri=True
            )
        ) as db:
            if not db.execute("PRAGMA user_version").fetchone()[0]:
                return None
            (found,) = db.execute("PRAGMA quick_check(1)").fetchone()
            if found != "ok":
                raise sqlite3.DatabaseError(found)
            tables = {
                name
                for (name,) in db.execute("SELECT name FROM sqlite_master")
            }
            rows = (
                db.execute("SELECT lab, writes FROM state").fetchall()
                if "state" in tables
                else []
            )
            lab, writes = rows[0] if rows else ("", 0)
            return str(lab), writes if isinstance(writes, int) else 0
    except sqlite3.Error as error:
        raise PatchlightError(
            f"cannot open the state in {path}: {error}", hint=hint
        ) from error


def _remedy(state_dir: Path) -> str:
    return (
        "restore a backup into another folder (patchlight controller restore); to continue with "
        f"this file, empty {state_dir / CHECK}; to start a new lab, move {state_dir} away"
    )


def _refusal(why: str, state_dir: Path) -> PatchlightError:
    return PatchlightError(why, hint=_remedy(state_dir))


def _not_kept(state_dir: Path, error: OSError) -> PatchlightError:
    return PatchlightError(
        f"storing the journal in {state_dir}: {error.strerror}",
        hint="use another folder with --state",
    )


def private_file(state_dir: Path, name: str) -> Path:
    """An SQLite file in the state's folder, both created if missing, for their owner only."""
    path = state_dir / name
    try:
        private_folder(state_dir, 0o750)
        path.touch(mode=0o600)
        # SQLite gives its other files the mode of this one.
        for each in (path, *state_dir.glob(f"{name}-*")):
            each.chmod(0o600)
    except OSError as error:
        raise _not_kept(state_dir, error) from error
    return path
