"""`python -m lorafleet_operator`."""

import sys

from lorafleet_operator.cli import main

sys.exit(main())
