"""All benchmarks, one after the other: `python -m benchmarks`."""

from benchmarks import telemetry

if __name__ == "__main__":
    telemetry.main()
