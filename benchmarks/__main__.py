"""All benchmarks, one after the other: `python -m benchmarks`."""

from benchmarks import curves, telemetry

if __name__ == "__main__":
    telemetry.main()
    curves.main()
