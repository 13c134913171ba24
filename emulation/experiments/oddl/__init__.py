"""ODDL (W. Li et al., 2024) in flows, compared with a fat-tree, SiP-Ring and an ideal switch."""
