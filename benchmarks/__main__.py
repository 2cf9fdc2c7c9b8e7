"""All benchmarks, one after the other: `python -m benchmarks`."""

from benchmarks import search, telemetry

if __name__ == "__main__":
    telemetry.main()
    search.main()
