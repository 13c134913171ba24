"""What the authors say that they found, and where; nothing else is known of their figures.

W. Li, G. Yuan, Z. Wang, G. Tan, P. Zhang, G. N. Rouskas, "Fast and scalable all-optical network
architecture for distributed deep learning", J. Opt. Commun. Netw. 16(3), 2024: only the abstract
was at hand.
"""

from collections.abc import Mapping

SPEEDUPS: Mapping[tuple[str, int], Mapping[str, float]] = {
    ("vgg19", 1024): {"fat_tree": 1.6, "sip_ring": 1.7}
}
"""By model and nodes: training time on the other network over that on ODDL."""
