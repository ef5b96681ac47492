"""`python -m lorafleet_sidecar`."""

from lorafleet_sidecar.cli import main

if __name__ == "__main__":
    main()
