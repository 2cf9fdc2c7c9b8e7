"""All benchmarks, one after the other: `python -m benchmarks`."""

from benchmarks import curves, data, fits, many, record, search, startup, step, telemetry, throughput

if __name__ == "__main__":
    step.main(["--clock", "cpu", "--compare"])
    telemetry.main()
    throughput.main()
    data.main()
    startup.main()
    fits.main()
    many.main()
    record.main()
    curves.main()
    search.main()
