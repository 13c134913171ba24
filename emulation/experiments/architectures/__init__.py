"""Network architectures side by side, under one mix of jobs: time, links, light, power, cost."""
