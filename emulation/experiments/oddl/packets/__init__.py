"""ODDL in packets: four nodes with tunable transceivers, compared with one packet switch."""
