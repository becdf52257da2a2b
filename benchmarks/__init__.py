"""Speed and memory, beside the peers in the same run, printed as ratios."""
