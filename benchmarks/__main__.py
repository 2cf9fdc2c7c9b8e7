"""All benchmarks, one after the other: `python -m benchmarks`."""

from benchmarks import curves, many, record, search, telemetry

if __name__ == "__main__":
    telemetry.main()
    many.main()
    record.main()
    curves.main()
    search.main()
