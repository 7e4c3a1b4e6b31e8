"""`python -m mcp_client_guard` is `mcp-guard`."""

import sys

from .cli import main

sys.exit(main())
