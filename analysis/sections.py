"""Answers that stay: a section of a sweep's report, or of the page of somebody's table, made by the call it names.

    <report>/sections/<title>/section.json figure.svg figure.png ...

A section of the same title replaces the one before; who deletes its folder has removed it.
"""

import hashlib
import logging
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from analysis.lint import Finding
from analysis.pictures import Picture, inline
from analysis.told import Block, Table
from results.files import BadFile, now, read_json, write_json

if TYPE_CHECKING:
    from analysis.select import Plan
    from results.home import Home

log = logging.getLogger(__name__)

FORMAT = 1


@dataclass(frozen=True)
class StoredPicture:
    """A picture of a section, as it lies in its folder."""

    path: Path  # without its ending
    title: str
    caption: str

    @property
    def name(self) -> str:
        return self.path.name

    @property
    def inline(self) -> str:
        """For a page."""
        return inline(self.file("svg").read_text(encoding="utf-8"), self.title)

    def save(self, folder: Path) -> list[Path]:
        """Copy both formats."""
        folder.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy(self.file(kind), folder)) for kind in ("png", "svg")]

    def file(self, kind: str) -> Path:
        """Its png or svg."""
        return self.path.with_name(f"{self.name}.{kind}")


@dataclass(frozen=True)
class Section:
    """What a report shows of one call. `plan_id`: of the sweep it is about; None for a table."""

    title: str
    command: str
    folder: str  # where it was called
    made_at: str
    plan_id: str | None
    blocks: Sequence[Block]
    pictures: Sequence[StoredPicture]


def keep(
    report: Path, title: str, command: str, plan_id: str | None, blocks: Iterable[Block], pictures: Sequence[Picture]
) -> Path:
    """Write a section below `report`; returns its folder. OSError where that cannot be."""
    name = slug(title)
    folder = report / "sections" / name
    folder.mkdir(parents=True, exist_ok=True)
    # On one page no id may be that of a picture of another section.
    drawn = [replace(picture, name=f"{name}-{picture.name}") for picture in pictures]
    for picture in drawn:
        picture.save(folder)
    content = {
        "format": FORMAT,
        "title": title,
        "command": command,
        "folder": str(Path.cwd()),
        "made_at": now(),
        "plan_id": plan_id,
        "blocks": [block if isinstance(block, str) else asdict(block) for block in blocks],
        "pictures": [{"name": p.name, "title": p.title, "caption": p.caption} for p in drawn],
    }
    write_json(folder / "section.json", content)
    return folder


def kept(report: Path, plan_id: str | None = None) -> list[Section]:
    """The sections below `report`, oldest first; of one about another plan only the call that would renew it."""
    found = []
    for path in (report / "sections").glob("*/section.json"):
        try:
            section = _read(path)
        except (BadFile, KeyError, TypeError, OSError) as error:
            log.warning("the section in %s cannot be read: %s", path.parent, error)
            continue
        found.append(section if section.plan_id == plan_id else _outdated(section))
    return sorted(found, key=lambda section: (section.made_at, section.title))


def folder_of(home: "Home", plan: "Plan") -> Path:
    """Where the report of a plan lies, and its sections below it."""
    return home.reports / plan.sweep / (plan.scale or "")


def slug(title: str, key: str | None = None) -> str:
    """A folder name that no other title has, or, of several things with one title, no other `key`."""
    words = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:40]
    return f"{words or 'section'}-{hashlib.blake2b((key or title).encode(), digest_size=3).hexdigest()}"


def _outdated(section: Section) -> Section:
    said = f"Made for plan {section.plan_id}, which is not the one shown here: the same call makes it anew."
    return replace(section, blocks=[said], pictures=[])


def _read(path: Path) -> Section:
    """Raises BadFile, KeyError, TypeError or OSError for a section that is not whole."""
    value: dict[str, Any] = read_json(path) or {}
    if value["format"] != FORMAT:
        raise BadFile(path, f"format {value['format']}, not {FORMAT}")
    words = {name: value[name] for name in ("title", "command", "folder", "made_at")}
    if not all(isinstance(word, str) for word in words.values()):
        raise TypeError("a title that is no text")
    pictures = [StoredPicture(path.parent / p["name"], p["title"], p["caption"]) for p in value["pictures"]]
    for picture in pictures:
        for kind in ("png", "svg"):
            picture.file(kind).stat()
    blocks = [_block(block) for block in value["blocks"]]
    return Section(**words, plan_id=value["plan_id"], blocks=blocks, pictures=pictures)


def _block(value: Any) -> Block:
    if isinstance(value, str):
        return value
    return Table(**value) if "header" in value else Finding(**value)
