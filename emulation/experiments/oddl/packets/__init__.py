"""ODDL in packets: four nodes with tunable transceivers beside the same four on one switch."""
