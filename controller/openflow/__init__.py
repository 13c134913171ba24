"""OpenFlow: flow tables as values, the speaker process that installs them, and its client."""
