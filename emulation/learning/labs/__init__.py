"""Learning how many workers jobs get, in random labs: by what other answers would have done."""
