"""`python -m deploy` runs the deploy server."""

import sys

from deploy.server import main

sys.exit(main())
