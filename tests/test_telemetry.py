"""Telemetry as a person asks for it: from the command to the database and the page."""

from pathlib import Path

from tests.user import User


def test_telemetry_from_the_command_to_the_report(tmp_path: Path, sweep_file: Path) -> None:
    user = User(tmp_path / "home")
    user.lab("sweep", str(sweep_file), "--yes", "-j", "2", "--seeds", "1", "--set", "train.telemetry_every=10")
    rows = user.json("sql", "SELECT run_id, name, layer, count(*) AS n, min(step) AS first FROM telemetry GROUP BY ALL")
    assert len(rows) == 2 * (3 + 1 + 5), "3 per layer, the log-normaliser, 5 groups of parameters"
    assert all((row["n"], row["first"]) == (3, 10) for row in rows)
    page = user.home / "reports" / "width" / "short"
    assert 'id="telemetry"' in (page / "index.html").read_text()
    assert (page / "figures" / "update_ratio.png").read_bytes().startswith(b"\x89PNG")
