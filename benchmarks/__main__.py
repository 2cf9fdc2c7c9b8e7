"""All benchmarks, one after the other: `python -m benchmarks`."""

from benchmarks import many, record, telemetry

if __name__ == "__main__":
    telemetry.main()
    many.main()
    record.main()
