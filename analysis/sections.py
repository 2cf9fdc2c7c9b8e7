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
class Drawn:
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
        return inline(self.path.with_name(f"{self.name}.svg").read_text(encoding="utf-8"), self.title)

    def save(self, folder: Path) -> list[Path]:
        """Copy both formats."""
        folder.mkdir(parents=True, exist_ok=True)
        return [Path(shutil.copy(self.path.with_name(f"{self.name}.{kind}"), folder)) for kind in ("png", "svg")]


@dataclass(frozen=True)
class Section:
    """What a report shows of one call. `plan_id`: of the sweep it is about; None for a table."""

    title: str
    command: str
    made_at: str
    plan_id: str | None
    blocks: Sequence[Block]
    pictures: Sequence[Drawn]


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
        "made_at": now(),
        "plan_id": plan_id,
        "blocks": [block if isinstance(block, str) else asdict(block) for block in blocks],
        "pictures": [{"name": p.name, "title": p.title, "caption": p.caption} for p in drawn],
    }
    write_json(folder / "section.json", content)
    return folder


def kept(report: Path, plan_id: str | None = None) -> list[Section]:
    """The sections below `report` that are about this plan, or about a table, oldest first."""
    found = []
    for path in (report / "sections").glob("*/section.json"):
        try:
            section = _read(path)
        except (BadFile, KeyError, TypeError) as error:
            log.warning("the section in %s cannot be read: %s", path.parent, error)
            continue
        if section.plan_id == plan_id:
            found.append(section)
    return sorted(found, key=lambda section: (section.made_at, section.title))


def folder_of(home: "Home", plan: "Plan") -> Path:
    """Where the report of a plan lies, and its sections below it."""
    return home.reports / plan.sweep / (plan.scale or "")


def slug(title: str) -> str:
    """A folder name that no other title has."""
    words = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:40]
    return f"{words or 'section'}-{hashlib.blake2b(title.encode(), digest_size=3).hexdigest()}"


def _read(path: Path) -> Section:
    value: dict[str, Any] = read_json(path) or {}
    pictures = [Drawn(path.parent / p["name"], p["title"], p["caption"]) for p in value["pictures"]]
    blocks = [_block(block) for block in value["blocks"]]
    return Section(value["title"], value["command"], value["made_at"], value["plan_id"], blocks, pictures)


def _block(value: Any) -> Block:
    if isinstance(value, str):
        return value
    return Table(**value) if "header" in value else Finding(**value)
