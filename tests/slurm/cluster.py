"""A real one-node SLURM on this machine, for tests: `python tests/slurm/cluster.py start|stop|status`.

Needs root and the Debian packages `slurm-wlm` and `munge`. Configuration, state, logs, the munge key and its socket
all lie in one private folder (`$LAB_SLURM_DIR`, default /tmp/lab-slurm) and every daemon listens on a port that was
free at the start, so several clusters can live side by side and nothing under /etc or /run is touched.
"""

import argparse
import contextlib
import fcntl
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

CLUSTER_NAME = "lab"
# In the order of starting; stopping goes backwards. Each has a folder of its name with `pid`, `log` and its state.
DAEMONS = ("munged", "slurmctld", "slurmd")

# cred_expire: a requeued job starts again only after its old credential has expired (120 s by default, 5 at least).
# config_overrides: the node is what this file says, even where the container shows other hardware.
# SelectTypeParameters=CR_CPU: memory is not handed out, so a test cannot hang because of a large `--mem`.
CONF = """\
ClusterName={cluster}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={ctld_port}
SlurmdPort={slurmd_port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={root}/munged/socket,cred_expire=5
CommunicationParameters=NoAddrCache
StateSaveLocation={root}/slurmctld/state
SlurmdSpoolDir={root}/slurmd/spool
SlurmctldPidFile={root}/slurmctld/pid
SlurmdPidFile={root}/slurmd/pid
SlurmctldLogFile={root}/slurmctld/log
SlurmdLogFile={root}/slurmd/log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
MailProg=/bin/true
ReturnToService=2
SlurmdParameters=config_overrides
MaxArraySize=1001
JobRequeue=1
KillWait={kill_wait}
MinJobAge=300
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=1,sched_min_interval=100000,bf_interval=1,batch_sched_delay=0
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory={memory_mb} State=UNKNOWN
PartitionName=main Nodes={node} Default=YES PriorityTier=1 MaxTime=INFINITE DefaultTime=10 State=UP
PartitionName=urgent Nodes={node} PriorityTier=10 MaxTime=INFINITE DefaultTime=10 State=UP
"""


class ClusterError(RuntimeError):
    """The cluster could not be brought up; the message carries the tails of the logs."""


def folder() -> Path:
    return Path(os.environ.get("LAB_SLURM_DIR", "/tmp/lab-slurm")).absolute()


def conf_path() -> Path:
    return folder() / "slurm.conf"


def pid_of(daemon: str) -> int | None:
    """The pid of a daemon that this folder started and that is alive, or None."""
    try:
        pid = int((folder() / daemon / "pid").read_text())
        command = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except (OSError, ValueError):
        return None
    # A pid file can outlive its process and the number pass to a stranger: the command line has to name this folder.
    ours = any(f"{folder()}/".encode() in part for part in command)
    return pid if ours and Path(command[0].decode()).name == daemon else None


def alive() -> bool:
    return all(pid_of(daemon) for daemon in DAEMONS)


def ask(*command: str, conf: Path | None = None, timeout: float = 10) -> str:
    """Output of a SLURM command asked of this (or another) cluster; "" when it fails or does not answer in time."""
    env = {**os.environ, "SLURM_CONF": str(conf or conf_path())}
    try:
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=timeout, check=False)
    except (subprocess.TimeoutExpired, FileNotFoundError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def node_state() -> str:
    return ask("sinfo", "--noheader", "--partition=main", "--format=%T")


def cluster_name(conf: Path) -> str:
    """What the running controller behind a slurm.conf calls itself; "" when it does not answer."""
    for line in ask("scontrol", "show", "config", conf=conf).splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "ClusterName":
            return value.strip()
    return ""


def free_ports(count: int) -> list[int]:
    """Ports that are free now. All sockets are held until the last is found, or one port could come twice."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for held in sockets:
            held.bind(("127.0.0.1", 0))
        return [int(held.getsockname()[1]) for held in sockets]


def write_conf(kill_wait: int) -> None:
    ctld_port, slurmd_port = free_ports(2)
    memory_mb = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    text = CONF.format(
        cluster=CLUSTER_NAME,
        # SLURM compares with the short host name; every address is given, so the name never has to resolve.
        host=socket.gethostname().split(".")[0],
        node="lab-node",
        root=folder(),
        ctld_port=ctld_port,
        slurmd_port=slurmd_port,
        cpus=max(2, len(os.sched_getaffinity(0))),  # two, so that two array tasks can always run side by side
        memory_mb=memory_mb,
        kill_wait=kill_wait,
    )
    conf_path().write_text(text)


def lay_out(kill_wait: int) -> None:
    """An empty state, a new munge key and a configuration. Only names that this file makes are removed."""
    for daemon in DAEMONS:
        home = folder() / daemon
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir(mode=0o755)
    (folder() / "slurmctld" / "state").mkdir()
    key = folder() / "munged" / "key"
    key.write_bytes(secrets.token_bytes(128))
    key.chmod(0o600)
    for path in (key.parent, key):
        shutil.chown(path, "munge", "munge")
    write_conf(kill_wait)


def spawn(daemon: str, *arguments: str, user: str | None = None) -> None:
    """Start a daemon that puts itself in the background. Its output goes to a file: a pipe would never be closed."""
    binary = shutil.which(daemon, path=f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin")
    if binary is None:
        raise ClusterError(f"{daemon} is not installed: apt-get install slurm-wlm munge")
    # A start from inside a job of another cluster must not pass that job's variables on.
    env = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SRUN"))}
    with (folder() / daemon / "output").open("wb") as output:
        done = subprocess.run(
            [binary, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=env,
            user=user,
            group=user,
            extra_groups=[] if user else None,
            check=False,
        )
    if done.returncode != 0:
        raise ClusterError(f"{daemon} ended with {done.returncode}\n{log_tails()}")


def start_munged() -> None:
    home = folder() / "munged"
    spawn(
        "munged",
        f"--socket={home}/socket",
        f"--key-file={home}/key",
        f"--pid-file={home}/pid",
        f"--log-file={home}/log",
        f"--seed-file={home}/seed",
        "--origin=127.0.0.1",  # otherwise it looks up the host name, which need not be in /etc/hosts
        "--num-threads=2",
        user="munge",
    )


def log_tails(lines: int = 15) -> str:
    tails = [ask("sinfo", "--long", "--list-reasons"), ask("squeue", "--long")]
    for path in [folder() / daemon / name for daemon in DAEMONS for name in ("output", "log")]:
        if path.exists():
            tails += [f"--- {path}", *path.read_text(errors="replace").splitlines()[-lines:]]
    return "\n".join(tails)


def bring_back(timeout: float = 60) -> None:
    """An administrator's word: no job is left, and a node that SLURM has drained works again.

    SLURM drains one where a job ended while slurmd was dead, or where a killed slurmctld forgot that a job had begun.
    """
    end_jobs()
    ask("scontrol", "update", "nodename=lab-node", "state=resume")  # refused where the node is sound
    wait_idle(timeout)


def wait_idle(timeout: float) -> None:
    deadline = time.monotonic() + timeout
    while (state := node_state()) != "idle":
        if time.monotonic() > deadline:
            raise ClusterError(f"the node is {state or 'silent'!r}, not idle, after {timeout:g} s\n{log_tails()}")
        time.sleep(0.2)


@contextlib.contextmanager
def locked() -> Iterator[None]:
    """One start or stop of a folder at a time."""
    root = folder()
    root.mkdir(mode=0o755, parents=True, exist_ok=True)
    with (root / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def start(kill_wait: int = 30, timeout: float = 60) -> Path:
    """Bring the cluster up, or leave it as it is when it is up. Returns the path of its slurm.conf."""
    if os.geteuid() != 0:
        raise ClusterError("a private SLURM needs root: its daemons change users")
    with locked():
        if alive():
            return conf_path()
        halt()  # remains of a half-dead cluster
        lay_out(kill_wait)
        try:
            start_munged()
            spawn("slurmctld", "-f", str(conf_path()))
            spawn("slurmd", "-f", str(conf_path()))
            wait_idle(timeout)
        except BaseException:
            halt()
            raise
    return conf_path()


def end_jobs(timeout: float = 10) -> None:
    """Cancel the jobs and kill their processes at once: one that ignores TERM would live for KillWait seconds."""
    # Waiting ones first, otherwise they start as soon as there is room.
    ask("scancel", "--state=PENDING", "--partition=main")
    ask("scancel", "--state=PENDING", "--partition=urgent")
    pids = [line.split()[0] for line in ask("scontrol", "listpids").splitlines()[1:]]
    ask("scancel", *ask("squeue", "--noheader", "--format=%A").split())
    for pid in pids:
        with contextlib.suppress(ValueError, ProcessLookupError):
            os.kill(int(pid), signal.SIGKILL)
    deadline = time.monotonic() + timeout
    while ask("squeue", "--noheader") and time.monotonic() < deadline:
        time.sleep(0.2)


def halt(timeout: float = 10) -> None:
    """End the daemons named by the pid files, and no other process."""
    if alive():
        end_jobs()
    for daemon in reversed(DAEMONS):
        deadline = time.monotonic() + timeout
        sent = signal.SIGTERM
        while pid := pid_of(daemon):
            if time.monotonic() > deadline:
                sent = signal.SIGKILL
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, sent)
            time.sleep(0.2)


def stop() -> None:
    if folder().exists():
        with locked():
            halt()


def main() -> int:
    parser = argparse.ArgumentParser(description="A one-node SLURM in $LAB_SLURM_DIR (default /tmp/lab-slurm).")
    parser.add_argument("command", choices=("start", "stop", "status"))
    parser.add_argument("--kill-wait", type=int, default=30, help="seconds between SIGTERM and SIGKILL (default 30)")
    options = parser.parse_args()
    if options.command == "stop":
        stop()
        return 0
    if options.command == "status":
        for daemon in DAEMONS:
            print(f"{daemon:10} {pid_of(daemon) or 'down'}", file=sys.stderr)
        print(f"{'node':10} {node_state() if alive() else 'down'}", file=sys.stderr)
    else:
        start(options.kill_wait)
    if not alive():
        return 1
    # The only line on stdout, so that a shell can do: eval "$(python tests/slurm/cluster.py start)"
    print(f"export SLURM_CONF={conf_path()}")
    return 0


if __name__ == "__main__":
    try:
        sys.exit(main())
    except ClusterError as error:
        sys.exit(f"cluster.py: {error}")
