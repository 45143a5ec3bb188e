"""What learns: backbones, incremental cross-attention, growing heads and the tagger made of them."""
