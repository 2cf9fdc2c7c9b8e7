"""Exit codes of a worker and its children, out of the way of those that a run which ends itself may use."""

ENDED, FAILED, NOT_CLAIMED, DISK_FULL, NO_ENVIRONMENT = 0, 1, 101, 102, 103
