"""Hosts on which everything fails at once: found in the record and in SLURM's accounting, named, and avoided."""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime

from results.home import Home
from results.record import AttemptInfo
from results.state import RunState, State
from sweeps.slurm import Ending

QUICK_S = 60.0  # a failure after more than this was no failure to start
ENOUGH = 3  # quick failures without one success
NOT_THE_HOST = ("oom", "disk")
JOB_FAILURES = ("FAILED", "NODE_FAIL", "BOOT_FAIL", "OUT_OF_MEMORY")


@dataclass(frozen=True)
class BadHost:
    """A host, how many runs or jobs failed there at once, and what the last of them said."""

    name: str
    failures: int
    example: str

    def __str__(self) -> str:
        return f"{self.name} fails everything at once ({self.failures} times, such as: {self.example})"


def host_of(info: AttemptInfo) -> str:
    """What SLURM calls the host of an attempt, else its own name; "" where its claim cannot be read."""
    claim = info.claim or {}
    return str(claim.get("node") or claim.get("host") or "")


def works(info: AttemptInfo) -> bool:
    """Whether this attempt shows that its host can train: it got past loading and did not fail."""
    reason = (info.exit or {}).get("reason")
    if info.exit is not None:
        return reason not in ("failed", "superseded")
    return info.heartbeat is not None and info.resume_step is not None and info.heartbeat[1] > info.resume_step


def failed_quickly(info: AttemptInfo) -> bool:
    """Whether this attempt failed so soon that its host may be to blame."""
    exit_, claim = info.exit or {}, info.claim or {}
    if exit_.get("reason") != "failed" or exit_.get("kind") in NOT_THE_HOST:
        return False
    try:
        took = datetime.fromisoformat(exit_["ended_at"]) - datetime.fromisoformat(claim["claimed_at"])
    except (KeyError, TypeError, ValueError):
        return False
    return took.total_seconds() < QUICK_S


def bad_hosts(home: Home, states: Sequence[RunState], endings: Iterable[Ending] = ()) -> dict[str, BadHost]:
    """By name. A host is bad after ENOUGH quick failures without a success there, while others can work.

    Where nothing has worked anywhere one such host is avoided, but several are not: then it is not the hosts.
    """
    # Only runs in trouble are read at first: plans are large and trouble is rare.
    troubled = (s for s in states if s.state is State.FAILED or s.attempts > 1)
    ends = [e for e in endings if e.state in JOB_FAILURES and e.seconds < QUICK_S and e.node]
    seen = {s.run_id: home.run(s.run_id).attempts() for s in troubled}
    if not _suspects(seen, ends):
        return {}
    seen |= {s.run_id: home.run(s.run_id).attempts() for s in states if s.run_id not in seen and s.attempts}
    infos = [info for run in seen.values() for info in run]
    claimed = {str((info.claim or {}).get("job")) for info in infos}
    working = {host_of(info) for info in infos if works(info)}
    suspects = _suspects(seen, [end for end in ends if end.task not in claimed])
    found = {name: bad for name, bad in suspects.items() if name not in working}
    return found if working or len(found) == 1 else {}


def _suspects(seen: dict[str, list[AttemptInfo]], endings: Iterable[Ending]) -> dict[str, BadHost]:
    failures: dict[str, dict[str, str]] = defaultdict(dict)  # host -> run or job -> what was said
    for run_id, infos in seen.items():
        for info in filter(failed_quickly, infos):
            failures[host_of(info)][run_id] = str((info.exit or {}).get("error"))
    for end in endings:
        failures[end.node][end.task] = f"job {end.task} ended as {end.state} after {end.seconds:.0f} s"
    return {
        name: BadHost(name, len(what), list(what.values())[-1])
        for name, what in failures.items()
        if len(what) >= ENOUGH
    }


def failed_on(home: Home, state: RunState, bad: Mapping[str, BadHost]) -> bool:
    """Whether the newest attempt of a run failed at once on one of these hosts."""
    newest = home.run(state.run_id).attempts()[-1:] if bad else []
    return any(host_of(info) in bad and failed_quickly(info) for info in newest)


class Watch:
    """What a worker knows of its own host. `others` tells whether other hosts work, or None while that is open."""

    def __init__(self, host: str, others: Callable[[], bool | None]) -> None:
        self.host, self.others = host, others
        self.failures = 0
        self.worked = False

    def saw(self, failed: bool) -> None:
        """A run has ended here: it failed at once, or it shows that this host works."""
        self.failures += failed
        self.worked = self.worked or not failed

    def verdict(self) -> str:
        """'fine', 'bad' or 'wait': after ENOUGH failures without a success it hangs on what other hosts do."""
        if self.worked or self.failures < ENOUGH:
            return "fine"
        return {True: "bad", False: "fine", None: "wait"}[self.others()]


def others_work(home: Home, run_ids: Iterable[str], host: str) -> bool | None:
    """Whether any other host could train a run of these; None while one is still trying, False if none is."""
    trying = False
    for run_id in run_ids:
        for info in home.run(run_id).attempts():
            if host_of(info) == host:
                continue
            if works(info):
                return True
            trying = trying or info.exit is None
    return None if trying else False
