"""`python -m mcp_client_guard.cli` is `mcp-guard`."""

import sys

from ._main import main

sys.exit(main())
