"""What the REST API answers, as types: of the client's calls, and of the API's description."""

from pydantic import ConfigDict, with_config

exactly = with_config(ConfigDict(extra="forbid"))
"""These fields and no others."""
