"""The certificate with which the controller calls agents on TCP."""

import logging
from pathlib import Path

from patchlight.testbed.errors import BadInput
from patchlight.testbed.linux.credentials import (
    Credentials,
    agent_name,
    controller_name,
    new_context,
    read_credentials,
    stamp,
)

_log = logging.getLogger(__name__)


class AgentTls:
    """What agents are called with: one context for all of them.

    An empty folder is one that a certificate is put into later: until then ``credentials`` is
    ``None``. ``BadInput`` if there is no folder, or if it has what is not for the lab's controller.
    """

    def __init__(self, lab: str, folder: Path) -> None:
        self.lab, self.folder = lab, folder
        self.credentials: Credentials | None = None
        self.context = new_context(server=False)
        self._stamp = stamp(folder)
        if self._stamp or not folder.is_dir():
            self._take()
        else:
            _log.warning("no certificate in %s yet: agents on TCP are not called", folder)

    def agent(self, server: str) -> str:
        """What the agent of a server is called in its certificate."""
        return agent_name(server, self.lab)

    def refresh(self) -> None:
        """Take what was put into the folder since; the log says why if it cannot be taken."""
        if (found := stamp(self.folder)) == self._stamp:
            return
        self._stamp = found
        try:
            self._take()
        except BadInput as error:
            _log.error("%s", error)

    def _take(self) -> None:
        found = read_credentials(self.folder)
        found.check(controller_name(self.lab))
        found.load_into(self.context)
        self.credentials = found
        _log.info("certificate for %s, until %s", found.name, f"{found.not_after:%Y-%m-%d}")
