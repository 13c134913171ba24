"""The lab's packet switches: what they forward, and what they count."""
