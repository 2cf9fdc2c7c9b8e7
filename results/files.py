"""Durable file primitives: a reader sees the old content or the new content, never a mixture."""

import contextlib
import errno
import json
import math
import os
import re
import shutil
import stat
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO
from uuid import uuid4

from results.shapes import Shape, misfit

LARGEST_JSON = 64 << 20  # bytes; a plan of 100,000 runs has less
# What content of another kind than expected raises in whoever works with it.
UNREADABLE = (OSError, ValueError, TypeError, LookupError, AttributeError, ArithmeticError, RecursionError)

_NUMBER = re.compile(r"[0-9]{4}|[1-9][0-9]{4,8}")  # as `f"{number:04d}"` writes it
_SAFE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")


class StorageFull(OSError):
    """No space (or quota) left for `need_bytes` at `path`; what was there before is untouched."""

    def __init__(self, path: Path, need_bytes: int | None = None, code: int = errno.ENOSPC) -> None:
        what = "quota used up" if code == errno.EDQUOT else "no space left on the device"
        need = "" if need_bytes is None else f" for {need_bytes} bytes"
        super().__init__(code, f"{what}{need}, make room and call again", str(path))
        self.path = path
        self.need_bytes = need_bytes


class BadFile(ValueError):
    """A file of the record that is torn, corrupt or not of the expected shape."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"{path}: {reason}")
        self.path = path
        self.reason = reason


class BadName(ValueError):
    """A name that is not safe as a part of a path."""


def now() -> str:
    """The present instant, ISO 8601 in UTC with microseconds."""
    return datetime.now(UTC).isoformat(timespec="microseconds")


def safe_name(name: str) -> str:
    """Return `name` if it can be one path component everywhere; raise BadName if not."""
    if not _SAFE_NAME.fullmatch(name):
        raise BadName(f"bad name {name!r}: use 1 to 100 letters, digits, '.', '_' or '-', not starting with '.'")
    return name


def full_disk_code(error: BaseException) -> int | None:
    """ENOSPC or EDQUOT if that is what the error is about, else None. Libraries tell it in words of their own."""
    for code in (errno.ENOSPC, errno.EDQUOT):
        if (isinstance(error, OSError) and error.errno == code) or os.strerror(code) in str(error):
            return code
    return None


@contextlib.contextmanager
def naming_full_disk(path: Path, need_bytes: int | None = None) -> Iterator[None]:
    """Turn ENOSPC and EDQUOT inside the block into StorageFull, which says where and, if known, how much."""
    try:
        yield
    except StorageFull:
        raise
    except Exception as error:
        code = full_disk_code(error)
        if code is None:
            raise
        raise StorageFull(path, need_bytes, code) from error


def fsync_folder(folder: Path) -> None:
    """Make the names in `folder` durable, where the file system can."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        with naming_full_disk(folder):
            os.fsync(fd)
    except OSError as error:
        # Some network file systems cannot sync a directory; their renames are as durable as they will ever be.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(fd)


def fsync_file(path: Path) -> None:
    """Make the content of a file that was written by somebody else durable."""
    with naming_full_disk(path), path.open("rb") as file:
        os.fsync(file.fileno())


def write_new(path: Path, data: bytes, durable: bool = True) -> None:
    """Write (and fsync) a file that must not exist yet. Its name is durable only after fsync_folder."""
    with naming_full_disk(path, len(data)), path.open("xb") as file:
        file.write(data)
        if durable:
            file.flush()
            os.fsync(file.fileno())


def write_bytes(path: Path, data: bytes, durable: bool = True) -> None:
    """Replace `path` by `data`, durably unless told otherwise. Raises StorageFull with the old content in place."""
    temp = path.with_name(f".{path.name}.{uuid4().hex}.tmp")
    try:
        write_new(temp, data, durable)
        with naming_full_disk(path, len(data)):
            temp.replace(path)
            if durable:
                fsync_folder(path.parent)
    except BaseException:
        temp.unlink(missing_ok=True)
        raise


def write_json(path: Path, value: Mapping[str, Any]) -> None:
    """Replace `path` by `value` as JSON, durably; NaN and infinities become "nan", "inf" and "-inf"."""
    write_bytes(path, encode_json(value).encode())


def encode_json(value: Any, indent: int | None = 1, ascii_only: bool = True) -> str:
    """Strict JSON text with sorted keys and a newline at its end; without indent, ten times faster."""
    encode = partial(json.dumps, sort_keys=True, indent=indent, allow_nan=False, ensure_ascii=ascii_only)
    try:
        return encode(value) + "\n"
    except ValueError:
        return encode(finite(value)) + "\n"


def finite(value: Any) -> Any:
    """`value` with every non-finite float replaced by its name, because JSON has no word for it."""
    if isinstance(value, float) and not math.isfinite(value):
        return repr(float(value))
    if isinstance(value, Mapping):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return value


def open_regular(path: Path) -> BinaryIO:
    """`path` for reading; OSError if it is no regular file, where a pipe would let us wait for its writer."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise OSError(errno.EINVAL, "not a regular file", str(path))
    return os.fdopen(fd, "rb")


def read_bytes(path: Path, limit: int = LARGEST_JSON) -> bytes | None:
    """What is in `path`, or None if there is no such file; BadFile if it cannot be read or has more than `limit`."""
    try:
        with open_regular(path) as file:
            size = os.fstat(file.fileno()).st_size
            if size > limit:
                raise BadFile(path, f"{size} bytes are more than a file of its kind has")
            return file.read()  # not read(limit), which takes so much memory first
    except FileNotFoundError:
        return None
    except OSError as error:
        raise BadFile(path, error.strerror or str(error)) from error


def read_json(path: Path, shape: Shape = dict) -> dict[str, Any] | None:
    """The JSON object in `path`, or None if there is no such file; BadFile if it is torn or not of the shape."""
    data = read_bytes(path)
    if data is None:
        return None
    if not data.strip():
        raise BadFile(path, "empty file")
    try:
        value = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BadFile(path, f"not JSON: {error}") from error
    if not isinstance(value, dict):
        raise BadFile(path, "not a JSON object")
    if part := misfit(value, shape):
        raise BadFile(path, f"{part.lstrip('.')} is absent or not what it should be")
    return value


def read_folder(folder: Path, shape: Shape = dict) -> list[dict[str, Any]]:
    """The JSON objects in the `*.json` files of a folder, in no order; damaged ones are left out."""
    found = []
    for path in folder.glob("*.json"):
        with contextlib.suppress(BadFile):
            found.append(read_json(path, shape) or {})
    return found


def numbered(folder: Path) -> list[int]:
    """The numbers of the sub-folders named by four digits or more, sorted; empty if there is no such folder."""
    try:
        names = [path.name for path in folder.iterdir()]
    except FileNotFoundError:
        return []
    return sorted(int(name) for name in names if _NUMBER.fullmatch(name))


def claim_folder(target: Path, name: str, content: Mapping[str, Any]) -> bool:
    """Create the folder `target` holding the JSON file `name`; True for exactly one of many racing callers.

    A folder cannot be renamed onto a non-empty one, so there is one winner and its content is whole from the first
    instant. The owner is read back, because a network file system may report failure to the winner.
    """
    owner = uuid4().hex
    private = target.with_name(f".{target.name}.{owner}")
    private.mkdir()
    try:
        write_json(private / name, {**content, "owner": owner})
        private.rename(target)
    except OSError as error:
        # ENOENT: the winner has already swept our private folder away.
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST, errno.ENOENT):
            raise
    finally:
        shutil.rmtree(private, ignore_errors=True)
    if (read_json(target / name) or {}).get("owner") != owner:
        return False
    fsync_folder(target.parent)
    for loser in target.parent.glob(f".{target.name}.*"):
        shutil.rmtree(loser, ignore_errors=True)
    return True
