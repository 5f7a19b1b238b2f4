"""The cache service: which KV blocks are stored on this machine, and who may read them."""
