"""``python -m xrep`` is the command ``xrep``."""

import sys

from xrep_cli.xrep import main

sys.exit(main())
