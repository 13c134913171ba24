"""What the authors say that they found, and where; nothing else is known of their figures.

X. Li et al., "ODDL", 2024: only the abstract was at hand.
"""

from collections.abc import Mapping

SPEEDUPS: Mapping[tuple[str, int], Mapping[str, float]] = {
    ("vgg19", 1024): {"fat_tree": 1.6, "sip_ring": 1.7}
}
"""By model and nodes: training time on the other network over that on ODDL."""
