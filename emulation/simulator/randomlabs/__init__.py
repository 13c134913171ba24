"""Labs and jobs that are drawn by chance: episodes, and policies compared in many of them."""
