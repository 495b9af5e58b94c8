"""Many workers on shared coordinates, over torch.distributed."""
