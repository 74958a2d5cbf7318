"""`python -m deploy` runs the deploy server."""

import sys

from deploy.server.app import main

sys.exit(main())
